"""One rank of an attempt, from a RunSpec to an Outcome: what Ray Train's workers and torchrun's processes both run.

The launcher has decided everything: the claim is taken, the data is prepared or being prepared, the number of steps is
in the run's log. No signal handlers here: under Ray the loop runs in a thread.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from warpbeam.checkpoint.log import Claim
from warpbeam.data.dataset import open_dataset
from warpbeam.data.tokenizer_store import load_stored_tokenizer
from warpbeam.errors import PlatformError
from warpbeam.job import Job, parse_job
from warpbeam.launch.model_config import read_model_config
from warpbeam.launch.versions import installed
from warpbeam.plan.plan import Plan, make_plan
from warpbeam.pool import Pool, parse_pool
from warpbeam.record.phases import Phase, PhaseClock
from warpbeam.record.writer import RecordWriter
from warpbeam.spec_file import digest
from warpbeam.storage import ObjectStore, StorageConfig, open_store
from warpbeam.train import hooks, ops
from warpbeam.train.callbacks.base import Callbacks
from warpbeam.train.callbacks.standard import standard_callbacks
from warpbeam.train.context import Context
from warpbeam.train.flops import peak_flops
from warpbeam.train.ranks import Ranks, join, pick_device
from warpbeam.train.recipes import lm
from warpbeam.train.saving import Checkpoints, Identity
from warpbeam.train.setup import Setup

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What a rank is told. JSON, without secrets.

    Attributes:
        job, pool, storage, claim: as their `to_dict()` gives them.
        root: the job file's folder on this machine.
        data: `train_prefix` and `eval_prefix` (None without evaluation data) in the run's store.
        plan: as the launcher printed it; None: worked out here for the launcher's world size.
    """

    job: dict[str, Any]
    root: str
    pool: dict[str, Any]
    storage: dict[str, Any]
    attempt: str
    claim: dict[str, Any]
    data: dict[str, str | None]
    launcher: str = "torchrun"
    world_size: int = 1
    driver: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunSpec:
        value = json.loads(text)
        return cls(**{item.name: value[item.name] for item in fields(cls) if item.name in value})


@dataclass(frozen=True)
class Outcome:
    """How the loop ended well: `done` or `stopped`, after which step, and the numbers of a summary."""

    state: str
    step: int
    metrics: dict[str, Any]


def run_rank(spec: RunSpec, *, stop: threading.Event | None = None) -> Outcome:
    """Train as one rank; the launcher's environment says which. Collective.

    Args:
        stop: whoever sets it makes all ranks end after the same step, with a checkpoint.
    """
    clock = PhaseClock(Phase.START)
    device = pick_device()
    ranks = join(device)
    job, pool = parse_job(spec.job), parse_pool(spec.pool)
    storage = StorageConfig.from_dict(spec.storage)
    store = open_store(storage)
    claim = Claim.from_dict(store, spec.claim)
    secrets = [os.environ[secret.env] for secret in job.secrets if os.environ.get(secret.env)]
    sink = RecordWriter(
        store,
        job.team,
        job.name,
        spec.attempt,
        f"rank-{ranks.rank}",
        clock=clock,
        secrets=secrets,
        watch_stop=ranks.is_first,
    )
    with sink:
        setup = _setup(spec, job, pool, storage, store, claim, ranks, device, sink, clock)
        if stop is not None:
            setup.stop = stop
        ctx = Context(setup)
        recipe(job)(ctx)
        state = ctx.finish()
        clock.switch(Phase.IDLE)
        sink.event("ended", state=state, step=ctx.step_done)
        return Outcome(state, ctx.step_done, summary(ctx))


def recipe(job: Job) -> Callable[[Context], None]:
    """The training loop of a job: its own, or the built-in one of its method."""
    if job.recipe is not None:
        own: Callable[[Context], None] = hooks.load(job.recipe, "recipe")
        return own
    return lm.train


def summary(ctx: Context) -> dict[str, Any]:
    """The numbers that describe a run's end: the last row, and the held-out loss before and after."""
    metrics = dict(ctx.last_row)
    if ctx.first_eval is not None:
        metrics["eval_loss_before"] = ctx.first_eval.loss
    if ctx.last_eval is not None:
        metrics |= {"eval_loss": ctx.last_eval.loss, "eval_tokens": ctx.last_eval.tokens}
    if ctx.packing is not None:
        metrics["attention"] = ctx.packing.kernel
    return metrics


def _setup(
    spec: RunSpec,
    job: Job,
    pool: Pool,
    storage: StorageConfig,
    store: ObjectStore,
    claim: Claim,
    ranks: Ranks,
    device: torch.device,
    sink: RecordWriter,
    clock: PhaseClock,
) -> Setup:
    plan, total_steps = ranks.broadcast(_decide(spec, job, pool, storage, claim) if ranks.is_first else None)
    ops.ensure(ops.ops_for(plan.offload))
    train_data = open_dataset(store, spec.data["train_prefix"] or "")
    eval_prefix = spec.data.get("eval_prefix")
    scratch = Path(pool.local_disk) / f"user-{os.getuid()}"
    identity = Identity(
        job_digest=digest(job),
        data_fingerprint=train_data.sources.fingerprint,
        plan=plan.to_dict(),
        versions=installed() if ranks.is_first else {},
    )
    own = [hooks.load(target, "code.callbacks")() for target in job.code.callbacks]
    return Setup(
        job=job,
        plan=plan,
        root=Path(spec.root),
        attempt=spec.attempt,
        storage=storage,
        store=store,
        ranks=ranks,
        device=device,
        sink=sink,
        clock=clock,
        checkpoints=Checkpoints(
            store,
            claim,
            ranks,
            sink=sink,
            clock=clock,
            identity=identity,
            keep=job.checkpoint.keep,
            scratch=scratch,
        ),
        train_data=train_data,
        eval_data=open_dataset(store, eval_prefix) if eval_prefix else None,
        tokenizer=load_stored_tokenizer(
            store, train_data.sources.tokenizer or "", trust_remote_code=job.model.trust_remote_code
        ),
        total_steps=total_steps,
        scratch=scratch,
        peak_flops=peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None,
        callbacks=Callbacks([*standard_callbacks(ranks, spec.launcher), *own]),
    )


def _decide(spec: RunSpec, job: Job, pool: Pool, storage: StorageConfig, claim: Claim) -> tuple[Plan, int]:
    """What must be the same on all ranks, on rank 0: the plan, and the number of steps that the launcher froze."""
    total = claim.log.total()
    if total is None:
        raise PlatformError(
            f"the log of run {job.name!r} does not say how many steps it has",
            why="the launcher writes it before the ranks begin",
            reason="no_total_steps",
        )
    if spec.plan is not None:
        return Plan.from_dict(spec.plan), total
    config = read_model_config(job, Path(spec.root), storage)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return make_plan(job, pool, world_size=world, model_config=config), total
