"""Bring a crew up where its ranks are to run, measure, judge: what the command and the gate of a launch share."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from warpbeam.errors import InfraError, PlatformError, UserError, WarpbeamError
from warpbeam.preflight import nccl_tests
from warpbeam.preflight.ask import DRILL_S, QUICK_S, WHOLE_S, Ask
from warpbeam.preflight.conduct import Conductor, Progress
from warpbeam.preflight.crew import Crew
from warpbeam.preflight.expected import Expected, expected_of
from warpbeam.preflight.judge import judge
from warpbeam.preflight.measured import Measured, Skipped
from warpbeam.preflight.verdict import Verdict

if TYPE_CHECKING:
    from warpbeam.pool import Pool

LOCAL_JOIN_S = 90.0
DRILL_NODES = 2


class PreflightFailed(InfraError):
    """A launch was not begun, because the preflight that its pool requires has not passed."""

    default_reason = "preflight"


@dataclass(frozen=True)
class Result:
    """What a preflight has found."""

    measured: Measured
    promise: Expected
    verdict: Verdict

    def refuse(self) -> None:
        """Raise PreflightFailed unless it passed."""
        if self.verdict.passed:
            return
        suspects = self.verdict.suspects
        raise PreflightFailed(
            f"preflight {self.verdict.sentence}",
            why="; ".join(f"{suspect.where}: {suspect.what}" for suspect in suspects[1:4]),
            fix=suspects[0].do if suspects else "`warpbeam preflight` shows the whole table",
        )


def ask_of(
    pool: Pool,
    *,
    quick: bool,
    budget_s: float | None,
    local: bool,
    join_s: float | None = None,
    disk: str | None = None,
) -> Ask:
    """What to measure on a pool.

    Args:
        budget_s: where somebody said it.
        local: the ranks are processes of this machine.
        disk: in the place of the pool's.
    """
    usual = QUICK_S if quick else DRILL_S if local else WHOLE_S
    config = pool.storage_config()
    host = urlsplit(config.endpoint_url).hostname if config.endpoint_url else None
    return Ask(
        quick=quick,
        budget_s=budget_s or usual,
        join_s=join_s or (LOCAL_JOIN_S if local else WHOLE_S),
        disk=disk or pool.local_disk,
        store=config.to_dict(),
        names=(host,) if host else (),
        pool=pool.name,
    )


def preflight_local(
    pool: Pool, ranks: int, ask: Ask, *, nodes: int | None, progress: Progress, say: Callable[[str], None]
) -> Result:
    """Ranks on this machine.

    Args:
        nodes: network namespaces to spread them over; None: two where that is allowed.
        say: hears what a person should know.
    """
    from warpbeam.preflight import namespaces
    from warpbeam.preflight.local import LocalCrew

    if ask.store is not None:
        wake_store(pool, say)
    with contextlib.ExitStack() as stack:
        drill = []
        notes = []
        wanted = nodes if nodes is not None else DRILL_NODES if ranks > 1 and namespaces.allowed() else 1
        if wanted > 1:
            try:
                drill = stack.enter_context(namespaces.Namespaces(min(wanted, ranks)))
            except PlatformError as error:
                if nodes is not None:
                    raise
                notes.append(f"one node: {error.what} ({error.why})")
        elif nodes is None and ranks > 1:
            notes.append("one node: network namespaces need root")
        crew = LocalCrew(ranks, drill, pool.env)
        return conduct(crew, ask, pool, progress, notes, programs=True)


def preflight_on_ray(
    pool: Pool,
    ranks: int,
    ask: Ask,
    *,
    progress: Progress,
    node: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
) -> Result:
    """Ranks as actors of the Ray that this process is connected to."""
    from warpbeam.launch.ray_session import threads_per_rank
    from warpbeam.launch.ray_train import resources_per_rank
    from warpbeam.preflight.ray_crew import RayCrew

    crew = RayCrew(
        ranks, resources_per_rank(pool), threads=threads_per_rank(pool, ranks), node=node, runtime_env=runtime_env
    )
    return conduct(crew, ask, pool, progress, [])


def conduct(
    crew: Crew, ask: Ask, pool: Pool, progress: Progress, notes: list[str], *, programs: bool = False
) -> Result:
    """Measure and judge. `programs`: nccl-tests' own, once the ranks have ended."""
    promise = expected_of(pool, crew.size)
    measured = Conductor(crew, ask, progress).run()
    if programs and not ask.quick:
        nccl_tests.run(measured, ask.budget_s)
    measured.skipped += [Skipped("nodes", note) for note in notes]
    return Result(measured, promise, judge(measured, promise))


def wake_store(pool: Pool, say: Callable[[str], None]) -> None:
    """Have this machine's own store run, as a job does; a store that cannot be used is a finding of the measuring."""
    from warpbeam.storage.check import check_reachable

    if pool.storage.kind == "embedded":
        try:
            check_reachable(pool.storage_config())
        except WarpbeamError as error:
            say(f"the store: {error.what}")


def join_ray(address: str) -> None:
    """Connect to a running cluster. Raises UserError, PlatformError or InfraError."""
    import logging

    if "://" in address:
        raise UserError(
            f"--address {address!r} is no address that ranks could be conducted over",
            why="preflight's driver is a part of the cluster, so that its answers are about the cluster",
            fix="write HOST:PORT of the head (or `auto`) there, or the dashboard's http://HOST:8265 from anywhere",
            reason="bad_address",
        )
    try:
        import ray
    except ImportError as error:
        raise PlatformError(
            "Ray is not installed here",
            why=str(error),
            fix="`pip install 'warpbeam[train]'`, or name the dashboard: --address http://HOST:8265",
            reason="no_ray",
        ) from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise InfraError(
            f"the Ray cluster at {address} cannot be joined from {socket.gethostname()}",
            why=f"{type(error).__name__}: {error}".splitlines()[0],
            fix="run it on a machine of the cluster, or name its dashboard: --address http://HOST:8265",
            reason="ray_unreachable",
        ) from error
