"""The engine without Ray: what `torchrun -m warpbeam.train JOB` does around the ranks.

Rank 0 does what the driver does under Ray: it looks the name up, finds the prepared data, claims the run and freezes
the number of steps; the other ranks hear of it. Data is not prepared here: that is Ray Data's part.
"""

from __future__ import annotations

import json
import os
import secrets as random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from warpbeam.checkpoint.log import Claim, RunLog, newest_claim
from warpbeam.checkpoint.members import Member, end_leftovers, this_process
from warpbeam.data.dataset import open_dataset
from warpbeam.data.index import INDEX, read_or_none
from warpbeam.data.prepare_plan import plan_preparation
from warpbeam.errors import RunFailed, UserError, WarpbeamError
from warpbeam.job import load_job
from warpbeam.launch import secrets
from warpbeam.launch.begin import Opened, Planned, Request, open_run, plan_request
from warpbeam.launch.own_code import check_own_code, python_path
from warpbeam.launch.same_name import Finished
from warpbeam.pool import load_pool
from warpbeam.record import keys
from warpbeam.record.states import RunState
from warpbeam.record.stop import members
from warpbeam.storage.patience import PatientStore
from warpbeam.train import ops
from warpbeam.train.callbacks.console import Console
from warpbeam.train.ranks import Ranks
from warpbeam.train.worker import Outcome, RunSpec, run_rank
from warpbeam.versions import installed_versions

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore
    from warpbeam.train.context import Context

SCHEMA = "warpbeam/attempt/v1"


@dataclass(frozen=True)
class Options:
    """The command line."""

    job: Path
    pool: str | None = None
    fresh: bool = False
    allow: tuple[str, ...] = ()


def train(options: Options, ranks: Ranks) -> Outcome | None:
    """Open the run, train, log how it ended. Collective. None: the run is finished already."""
    loaded, pool = load_job(options.job), load_pool(options.pool)
    for folder in reversed(python_path(loaded.root)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    secrets.apply(loaded.job, pool.pool)
    request = Request(loaded, pool, ranks.world_size, options.fresh, frozenset(options.allow))
    processes = ranks.all_gather(this_process(f"rank-{ranks.rank}"))
    opening: _Opening | None = None
    told: RunSpec | WarpbeamError | None = None
    if ranks.is_first:
        try:
            opening = _Opening(request, str(options.job), processes)
            told = opening.spec()
        except WarpbeamError as error:
            told = error
    told = ranks.broadcast(told)
    if isinstance(told, WarpbeamError):
        raise told
    if told is None:
        return None
    stop = stop_on_signals()
    try:
        outcome = run_rank(told, stop=stop, callbacks=(Console(), opening) if opening is not None else ())
    except BaseException as error:
        if opening is not None:
            opening.failed(error)
        raise
    if opening is not None:
        opening.ended(outcome, "interrupted" if stop.is_set() else "asked")
    return outcome


def stop_on_signals() -> threading.Event:
    """SIGINT and SIGTERM ask for an end after the current step, with a checkpoint.

    torchrun passes on what it gets itself, so a second signal means nothing new; it kills after its own time-out.
    """
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    return stop


class _Opening:
    """Rank 0's part: everything before the first step, and the last words."""

    def __init__(self, request: Request, job_argument: str, processes: list[Member]) -> None:
        self._began_at = time.time()
        self._processes = [this_process("driver"), *processes]
        self._job_argument = job_argument
        planned = plan_request(request, on_doubt=lambda text: print(f"warning: {text}", file=sys.stderr))
        check_own_code(planned.job, planned.root)
        ops.ensure(ops.ops_for(planned.plan.offload))
        self._opened: Opened = open_run(planned, fresh=request.fresh, allowed=frozenset(request.allowed))
        self._planned: Planned = self._opened.planned
        self._store: ObjectStore = PatientStore(self._opened.store)
        self._names = (self._planned.job.team, self._planned.job.name)
        self._log = RunLog(self._store, *self._names)

    def spec(self) -> RunSpec | None:
        """What all ranks need; the claim is taken on the way. None: finished already."""
        if isinstance(self._opened.decision, Finished):
            return None
        prefixes = self._prepared()
        total = self._total_steps(prefixes["train_prefix"] or "")
        self.claim = self._take_claim()
        self._write_facts()
        if self._log.total() != total:
            self.claim.total(total)
        planned = self._planned
        return RunSpec(
            job=planned.job.to_dict(),
            root=str(planned.root),
            pool=planned.pool.pool.to_dict(),
            storage=planned.storage.to_dict(),
            attempt=self.claim.attempt,
            claim=self.claim.to_dict(),
            data=prefixes,
            launcher="torchrun",
            plan=planned.plan.to_dict(),
        )

    def on_start(self, ctx: Context) -> None:
        """The ranks are about to train (a callback's moment)."""
        self.claim.state(RunState.RUNNING)

    def ended(self, outcome: Outcome, stopped_because: str) -> None:
        """The engine returned."""
        reason = stopped_because if outcome.state == "stopped" else ""
        self._end(outcome.state, reason, outcome.step, outcome.metrics)

    def failed(self, error: BaseException) -> None:
        """This rank raised; a rank that was killed says nothing, and readers see the run as interrupted."""
        reason = error.reason if isinstance(error, WarpbeamError) else "failed"
        if reason != "fenced":
            self._end("failed", reason, 0, {}, what=str(error).splitlines()[0] if str(error) else type(error).__name__)

    def _prepared(self) -> dict[str, str | None]:
        """Prefixes of the data; UserError when somebody has yet to prepare it."""
        planned = self._planned
        found: dict[str, str | None] = {}
        for split, wanted in (("train", True), ("eval", bool(planned.job.data.eval))):
            found[f"{split}_prefix"] = None
            if not wanted:
                continue
            preparation = plan_preparation(planned.job, planned.root, self._store, planned.storage, split=split)  # type: ignore[arg-type]
            if read_or_none(self._store, f"{preparation.prefix}/{INDEX}") is None:
                raise UserError(
                    f"the {split} data of {self._job_argument} is not prepared",
                    why=f"{self._store.uri}/{preparation.prefix} is not complete; torchrun trains on prepared data",
                    fix=f"warpbeam data prepare {self._job_argument}",
                    reason="not_prepared",
                )
            found[f"{split}_prefix"] = preparation.prefix
        return found

    def _total_steps(self, prefix: str) -> int:
        train = self._planned.job.train
        if train.epochs is None:
            assert train.max_steps is not None
            return train.max_steps
        steps = open_dataset(self._store, prefix).total_steps(train.epochs, train.global_batch)
        return steps if train.max_steps is None else min(steps, train.max_steps)

    def _take_claim(self) -> Claim:
        before = newest_claim(self._log.read())
        number = sum(1 for entry in self._log.read() if entry.kind == "claim") + 1
        claim = self._log.claim(
            f"{number:04d}-{random.token_hex(4)}",
            self._processes,
            job=self._planned.job.to_dict(),
            root=str(self._planned.root),
            job_digest=self._planned.digest,
            pool_digest=self._planned.pool.digest,
        )
        if before is not None:
            earlier = members(self._opened.view, before.attempt)
            left = [one for one in earlier if not any(one.same_process(own) for own in self._processes)]
            end_leftovers(left, on_event=lambda text: print(text, flush=True))
        return claim

    def _write_facts(self) -> None:
        planned = self._planned
        facts = {
            "schema": SCHEMA,
            "job": planned.job.to_dict(),
            "job_digest": planned.digest,
            "pool": planned.pool.pool.name,
            "pool_digest": planned.pool.digest,
            "price_per_accelerator_hour": planned.pool.pool.price_per_accelerator_hour,
            "plan": planned.plan.to_dict(),
            "versions": installed_versions(),
            "cwd": os.getcwd(),
            "at": round(time.time(), 3),
        }
        self._store.put(keys.facts(*self._names, self.claim.attempt), json.dumps(facts).encode())

    def _end(self, state: str, reason: str, step: int, metrics: dict[str, Any], what: str | None = None) -> None:
        committed = self._log.newest_commit()
        beats = self._opened.view.heartbeats(self.claim.attempt)
        ranks = [beat["buckets"] for beat, _ in beats.values() if "buckets" in beat]
        names = {name for rank in ranks for name in rank}
        summary = {
            "schema": SCHEMA,
            "state": state,
            "reason": reason,
            "step": step,
            "total_steps": self._log.total(),
            "committed_step": committed.step if committed else None,
            "attempts": 1,
            "wall_s": time.time() - self._began_at,
            "owner": "unknown",
            "ending": what,
            "buckets": {name: sum(rank.get(name, 0.0) for rank in ranks) / len(ranks) for name in names},
            "timeline_s": {},
            "metrics": metrics,
        }
        self._store.put(keys.summary(*self._names, self.claim.attempt), json.dumps(summary, default=str).encode())
        self.claim.state(state, reason, step=step)


def explain(error: BaseException) -> RunFailed | None:
    """A connection that another rank's end broke, in words; None for anything else."""
    text = f"{type(error).__name__}: {error}".lower()
    if "connection closed by peer" in text or "connection reset" in text or "broken pipe" in text:
        return RunFailed(
            "another rank has ended, and this one lost its connection to it",
            why="its own message is above or below this one",
            fix="mend what it says; the same command goes on from the newest checkpoint",
            reason="rank_lost",
        )
    return None
