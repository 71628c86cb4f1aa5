"""All rules over the variables of a job on a pool. Pure, but for `look_here`, which asks this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from warpbeam.environment import fabric, names, values
from warpbeam.environment.setting import FABRIC, JOB, POOL, SHELL, Environment, Finding, Ground, Level, Setting

if TYPE_CHECKING:
    from warpbeam.job import Job
    from warpbeam.pool import Pool

CHECKS: Final = (*names.CHECKS, *values.CHECKS, *fabric.CHECKS)
TUNING: Final = ("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "DS_", "CUDA_LAUNCH_BLOCKING", "FI_", "TP_SOCKET_IFNAME")
"""What this shell hands on to ranks on this machine and is worth a look; the rest of a shell is nobody's business."""
INFINIBAND: Final = Path("/sys/class/infiniband")


def lint(environment: Environment, ground: Ground) -> list[Finding]:
    """What is wrong, errors first; in the order of the rules within a level."""
    found = [finding for check in CHECKS for finding in check(environment, ground)]
    return sorted(found, key=lambda finding: finding.level is not Level.ERROR)


def findings(job: Job | None, pool: Pool, *, ranks: int | None = None, here: bool) -> list[Finding]:
    """What is wrong with what this job's ranks get on this pool.

    Args:
        ranks: of the job; without, one for each accelerator.
        here: ranks are processes of this machine, and get what this shell has.
    """
    environment = environment_of(job, pool, os.environ if here else {})
    return lint(environment, ground_of(pool, ranks or pool.accelerators, here=here))


def environment_of(job: Job | None, pool: Pool, shell: Mapping[str, str]) -> Environment:
    """What a rank gets: the shell's, the pool's over it, the job's over both."""
    settings = {name: Setting(value, SHELL) for name, value in shell.items() if name.upper().startswith(TUNING)}
    settings |= {name: Setting(value, POOL) for name, value in pool.env.items()}
    if pool.kubernetes is not None:
        fabric_env = pool.kubernetes.fabric.env
        settings |= {name: Setting(value, FABRIC) for name, value in fabric_env.items()}
    if job is not None:
        settings |= {name: Setting(value, JOB) for name, value in job.env.items()}
    return Environment(settings)


def runs_here(pool: Pool) -> bool:
    """Whether ranks of this pool are processes of this machine."""
    return pool.kubernetes is None and pool.nodes == 1 and "RAY_ADDRESS" not in os.environ


def ground_of(pool: Pool, ranks: int, *, here: bool) -> Ground:
    """What the pool says about where ranks run, and this machine where that is here."""
    kubernetes = pool.kubernetes
    interfaces, hcas = look_here() if here else (None, None)
    return Ground(
        accelerator=pool.accelerator.kind,
        nodes=pool.nodes,
        ranks_per_node=-(-ranks // pool.nodes),
        cores_per_node=float(pool.accelerators_per_node) if pool.is_cpu else None,
        in_pods=kubernetes is not None,
        networks=tuple(kubernetes.fabric.networks) if kubernetes is not None else (),
        rdma=tuple(kubernetes.fabric.resources) if kubernetes is not None else None,
        interfaces=interfaces,
        hcas=hcas,
    )


def look_here() -> tuple[dict[str, bool], frozenset[str]]:
    """This machine's interfaces (name -> is up) and its RDMA devices."""
    interfaces = {name: state.isup for name, state in psutil.net_if_stats().items()}
    hcas = frozenset(os.listdir(INFINIBAND)) if INFINIBAND.is_dir() else frozenset[str]()
    return interfaces, hcas
