"""One rank of an attempt, from a RunSpec to an Outcome: what Ray Train's workers and torchrun's processes both run.

The launcher has decided everything: the claim is taken, the data is prepared or being prepared, the number of steps is
in the run's log. No signal handlers here: under Ray the loop runs in a thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from warpbeam.checkpoint.log import Claim
from warpbeam.data.dataset import Dataset, open_dataset
from warpbeam.data.tokenizer_store import load_stored_tokenizer
from warpbeam.errors import PlatformError
from warpbeam.job import Job, parse_job
from warpbeam.plan.plan import Plan
from warpbeam.pool import parse_pool
from warpbeam.record.phases import Phase, PhaseClock
from warpbeam.record.writer import RecordWriter
from warpbeam.spec_file import digest
from warpbeam.storage import StorageConfig, open_store
from warpbeam.storage.upload_process import UploadsElsewhere
from warpbeam.train import hooks, ops
from warpbeam.train.callbacks.base import Callbacks
from warpbeam.train.callbacks.standard import standard_callbacks
from warpbeam.train.context import Context
from warpbeam.train.diagnostics import LOADING
from warpbeam.train.flops import peak_flops
from warpbeam.train.heap import keep_freed_memory
from warpbeam.train.ranks import join, pick_device
from warpbeam.train.recipes import lm
from warpbeam.train.saving import Checkpoints, Identity
from warpbeam.train.setup import Setup
from warpbeam.train.watchdog import Watchdog
from warpbeam.versions import installed_versions


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What a rank is told. JSON, without secrets.

    Attributes:
        job, pool, storage, claim: as their `to_dict()` gives them.
        root: the job file's folder on this machine.
        data: `train_prefix` and `eval_prefix` (None without evaluation data) in the run's store.
        plan: as the launcher printed it.
    """

    job: dict[str, Any]
    root: str
    pool: dict[str, Any]
    storage: dict[str, Any]
    attempt: str
    claim: dict[str, Any]
    data: dict[str, str | None]
    launcher: str
    plan: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How the loop ended well: `done` or `stopped`, after which step, and the numbers of a summary."""

    state: str
    step: int
    metrics: dict[str, Any]


def run_rank(
    spec: RunSpec,
    *,
    stop: threading.Event | None = None,
    callbacks: Sequence[Any] = (),
    on_late: Callable[[], None] = lambda: None,
) -> Outcome:
    """Train as one rank; the launcher's environment says which. Collective.

    Args:
        stop: whoever sets it makes all ranks end after the same step, with a checkpoint.
        callbacks: the launcher's own, told before the job's.
        on_late: called from another thread while this rank stands somewhere longer than it usually does.
    """
    rank = _Rank(spec)
    with rank.record(on_late) as sink:
        try:
            setup = rank.setup(sink, stop or threading.Event(), callbacks)
            with setup.checkpoints:
                ctx = Context(setup)
                try:
                    recipe(rank.job)(ctx)
                except Exception as error:
                    ctx.save_alone(error)
                    raise
                state = ctx.finish()
        finally:
            rank.watchdog.stop()
            rank.store.close()
        rank.clock.switch(Phase.IDLE)
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


class _Rank:
    """This process's part of an attempt, opened from its spec."""

    def __init__(self, spec: RunSpec) -> None:
        self.clock = PhaseClock(Phase.START)
        self.spec = spec
        self.device = pick_device()
        if self.device.type == "cpu":
            keep_freed_memory()
        self.ranks = join(self.device)
        self.job, self.pool = parse_job(spec.job), parse_pool(spec.pool)
        self.storage = StorageConfig.from_dict(spec.storage)
        self.store = UploadsElsewhere(open_store(self.storage))
        self.claim = Claim.from_dict(self.store, spec.claim)
        # torchrun watches processes, not progress: there a rank that stands still has to end itself.
        self.watchdog = Watchdog(self.job.train.stall_after_s, ends=spec.launcher == "torchrun")
        # The user is in the name: a shared machine's second user could not write into the first one's folder.
        self.scratch = Path(self.pool.local_disk) / f"user-{os.getuid()}"

    def record(self, on_late: Callable[[], None]) -> RecordWriter:
        """Where this rank's events, metrics and signs of life go; rank 0 also looks for a request to stop."""
        secrets = [os.environ[secret.env] for secret in self.job.secrets if os.environ.get(secret.env)]
        return RecordWriter(
            open_store(self.storage),  # keeps what it cannot send, and must not hold up the end
            self.job.team,
            self.job.name,
            self.spec.attempt,
            f"rank-{self.ranks.rank}",
            clock=self.clock,
            secrets=secrets,
            watch_stop=self.ranks.is_first,
            on_beat=self.watchdog.touch,
            on_late=on_late,
        )

    def setup(self, sink: RecordWriter, stop: threading.Event, callbacks: Sequence[Any]) -> Setup:
        """Everything that a Context needs. Collective."""
        total_steps = self.ranks.broadcast(self._total_steps() if self.ranks.is_first else None)
        sink.mark(LOADING)
        plan = Plan.from_dict(self.spec.plan)
        ops.ensure(ops.ops_for(plan.offload))
        train_data = open_dataset(self.store, self.spec.data["train_prefix"] or "")
        eval_prefix = self.spec.data.get("eval_prefix")
        tokenizer = load_stored_tokenizer(
            self.store, train_data.sources.tokenizer or "", trust_remote_code=self.job.model.trust_remote_code
        )
        own_callbacks = [hooks.load(target, "code.callbacks")() for target in self.job.code.callbacks]
        is_gpu = self.device.type == "cuda"
        return Setup(
            job=self.job,
            plan=plan,
            root=Path(self.spec.root),
            attempt=self.spec.attempt,
            storage=self.storage,
            store=self.store,
            ranks=self.ranks,
            device=self.device,
            sink=sink,
            clock=self.clock,
            checkpoints=self._checkpoints(sink, plan, train_data),
            train_data=train_data,
            eval_data=open_dataset(self.store, eval_prefix) if eval_prefix else None,
            tokenizer=tokenizer,
            total_steps=total_steps,
            scratch=self.scratch,
            peak_flops=peak_flops(torch.cuda.get_device_name(self.device)) if is_gpu else None,
            stop=stop,
            callbacks=Callbacks([*standard_callbacks(self.ranks), *callbacks, *own_callbacks]),
        )

    def _checkpoints(self, sink: RecordWriter, plan: Plan, data: Dataset) -> Checkpoints:
        identity = Identity(
            job_digest=digest(self.job),
            data_fingerprint=data.sources.fingerprint,
            plan=plan.to_dict(),
            versions=installed_versions(),
        )
        return Checkpoints(
            self.store,
            self.claim,
            self.ranks,
            sink=sink,
            clock=self.clock,
            identity=identity,
            asked=self.job.checkpoint,
            scratch=self.scratch,
        )

    def _total_steps(self) -> int:
        """The number of steps, which the launcher froze."""
        total = self.claim.log.total()
        if total is None:
            raise PlatformError(
                f"the log of run {self.job.name!r} does not say how many steps it has",
                why="the launcher writes it before the ranks begin",
                reason="no_total_steps",
            )
        return total
