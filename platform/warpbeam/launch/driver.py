"""The driver of a run: bring data and workers together, try again where that helps, and say how it ended.

    fate = Driver(begin.open_run(...), reporter, began_at).run()

The order is chosen for a short start: Ray starts while own code is checked and the run is claimed, and the workers
import the engine while data is prepared. Every way out ends in a state in the run's log and in the `Fate`.
"""

from __future__ import annotations

import json
import os
import secrets as random
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from warpbeam.checkpoint.log import Claim, Entry, newest_claim
from warpbeam.checkpoint.members import end_leftovers, this_process
from warpbeam.errors import Owner, WarpbeamError
from warpbeam.launch import secrets
from warpbeam.launch.attempt import Attempt, AttemptEnd, Reporter, StoppedEarly, explain_preparation
from warpbeam.launch.begin import Opened, Planned, resized
from warpbeam.launch.elastic import legal_sizes
from warpbeam.launch.failure import Cause, Failure, Retry, Stop, decide
from warpbeam.launch.gate_preflight import gate
from warpbeam.launch.interrupt import Interrupts, Killed
from warpbeam.launch.local_logs import bring_home
from warpbeam.launch.own_code import check_own_code, python_path
from warpbeam.launch.own_ray_job import over_for_good, own_ray_job
from warpbeam.launch.preparation import BackgroundPreparation
from warpbeam.launch.rank import SCHEMA
from warpbeam.launch.ray_session import RayNeeds, RaySession, joined_address
from warpbeam.launch.ray_train import Ending
from warpbeam.preflight.launch import PreflightFailed
from warpbeam.record import keys
from warpbeam.record.desired import stop_is_wanted
from warpbeam.record.phases import Phase, PhaseClock, place_ranks, set_apart
from warpbeam.record.states import RunState
from warpbeam.record.stop import kill_here, members
from warpbeam.record.view import RunView
from warpbeam.record.writer import RecordWriter
from warpbeam.storage.patience import PatientStore
from warpbeam.train import ops
from warpbeam.version_contract import hold_to
from warpbeam.versions import installed_versions

START_TIMEOUT_S = 600.0
TICK_S = 0.1
KILL_S = 10.0


@dataclass(frozen=True)
class Fate:
    """How the command ended.

    Args:
        owner: who can mend it, for a failure.
        ending: of the last attempt, when it ended early.
        buckets: where the command's time went, in seconds; they add up to `wall_s`.
        timeline_s: seconds from the command to what was reached (ray, workers, data, first_step) in the first attempt.
    """

    state: RunState
    reason: str
    step: int
    total_steps: int | None
    committed_step: int | None
    attempts: int
    wall_s: float
    owner: Owner = "unknown"
    ending: Ending | None = None
    buckets: dict[str, float] = field(default_factory=dict)
    timeline_s: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without what is only for a terminal."""
        value = asdict(self) | {"schema": SCHEMA}
        value["ending"] = self.ending.what if self.ending else None
        return value


class Driver:
    """Runs one command.

    Args:
        began_at: the wall-clock time at which the command was started.
        start_timeout_s: how long the ranks of an attempt may wait for their accelerators.
    """

    def __init__(
        self, opened: Opened, reporter: Reporter, began_at: float, start_timeout_s: float = START_TIMEOUT_S
    ) -> None:
        self.plain_store = opened.store
        self.store = PatientStore(opened.store, lambda error: reporter.warn(f"{error.what}; waiting for it"))
        self.opened = replace(opened, store=self.store, view=RunView(self.store, opened.view.team, opened.view.run))
        self.names = (self.planned.job.team, self.planned.job.name)
        self.reporter = reporter
        self.began_at = began_at
        self.ray_job = own_ray_job(reporter.warn)
        self.start_timeout_s = self._start_timeout_s(start_timeout_s)
        self.clock = PhaseClock(Phase.START, age_s=time.time() - began_at)
        self.interrupts = Interrupts(self._on_first_signal)
        self.hidden: list[str] = []
        self.ends: list[AttemptEnd] = []
        self.failures: list[Failure] = []
        self.attempt: Attempt | None = None
        self.ray_ready_s: float | None = None
        self.passed_at: int | None = None

    @property
    def planned(self) -> Planned:
        """The plan of the newest attempt: an elastic run changes its size."""
        return self.opened.planned

    def _start_timeout_s(self, asked_s: float) -> float:
        """In a RayJob all pods were there before the driver was: what is missing now has been lost, and KubeRay does
        not replace a pod that is stuck on a dead node. So the wait for it is the pool's, and a new cluster follows."""
        kubernetes = self.planned.pool.pool.kubernetes
        if self.ray_job is None or kubernetes is None:
            return asked_s
        return min(asked_s, kubernetes.deadlines.whole_again_s)

    def run(self) -> Fate:
        """Train until the run is done, stopped or given up. Raises only what happens before the claim."""
        with self.interrupts:
            self.hidden = secrets.apply(self.planned.job, self.planned.pool.pool)
            image = self.planned.pool.pool.image
            if self.ray_job is not None and image is not None:
                hold_to(image.versions, installed_versions(), "this pod")
            if joined_address() is None:  # the ranks will be here; elsewhere each node sees to its own
                ops.ensure(ops.ops_for(self.planned.plan.offload), say=self.reporter.note)
            self.session = self._start_ray()
            try:
                check_own_code(self.planned.job, self.planned.root)
                return self._attempts()
            finally:
                self.session.close()

    def _start_ray(self) -> RaySession:
        needs = RayNeeds(self.planned.plan.world_size, self.start_timeout_s, python_path(self.planned.root))
        return RaySession(self.planned.pool.pool, needs)

    def _attempts(self) -> Fate:
        preparation: BackgroundPreparation | None = None
        while True:
            claim = self._claim()
            if self.ray_job is not None and not self.ends:
                if stop_is_wanted(self.opened.view, since=self.ray_job.made_at()):
                    return self._finish(claim, RunState.STOPPED, "asked")
                self.ray_job.lend_retries()
            if self.session.failed:
                self.session.close()
                self.session = self._start_ray()
            record = RecordWriter(
                self.plain_store, *self.names, claim.attempt, "driver", clock=self.clock, secrets=self.hidden
            )
            with record:
                try:
                    if preparation is None:
                        preparation = self._prepare()
                    end = self._one(claim, record, preparation)
                except Killed:
                    return self._killed(claim)
                except StoppedEarly:
                    return self._finish(claim, RunState.STOPPED, "interrupted")
                except PreflightFailed as error:
                    end = AttemptEnd(Ending(Cause.PREFLIGHT, error.what, Cause.PREFLIGHT, error), None, 0)
                except WarpbeamError as error:
                    end = AttemptEnd(explain_preparation(error), None, 0)
                    preparation = None  # another attempt prepares anew, from what is sealed
                except Exception:
                    self._finish(claim, RunState.FAILED, "crash")
                    raise
                self.ends.append(end)
                if self._resizes(end):
                    self._resize(record)
                    continue
                if end.ending is None:
                    state = end.state or RunState.DONE
                    reason = "interrupted" if self.interrupts.requested else "asked"
                    reason = reason if state is RunState.STOPPED else ""
                    return self._finish(claim, state, reason)
                verdict = self._judge(end, record)
                if isinstance(verdict, Stop):
                    return self._finish(claim, RunState.FAILED, verdict.reason, verdict.owner)
                self._pause(end.ending, verdict)
            if self.interrupts.requested:
                return self._finish(claim, RunState.STOPPED, "interrupted")

    def _one(self, claim: Claim, record: RecordWriter, preparation: BackgroundPreparation) -> AttemptEnd:
        self._write_facts(claim)
        while not self.session.up(TICK_S):
            preparation.check()
            if self.interrupts.requested:
                raise StoppedEarly
        if self.ray_ready_s is None:
            self.ray_ready_s = time.time() - self.began_at
        self._pass_gate(record)
        self.attempt = Attempt(
            opened=self.opened,
            claim=claim,
            session=self.session,
            preparation=preparation,
            clock=self.clock,
            record=record,
            reporter=self.reporter,
            stop_wanted=lambda: self.interrupts.requested,
            hidden=self.hidden,
            began_at=self.began_at,
            start_timeout_s=self.start_timeout_s,
            sizes=legal_sizes(self.planned.job, self.planned.pool.pool),
        )
        return self.attempt.run()

    def _pass_gate(self, record: RecordWriter) -> None:
        """A pool may want its machines measured first; once for each size. Raises PreflightFailed."""
        pool, ranks = self.planned.pool.pool, self.planned.plan.world_size
        if pool.preflight != "require" or self.passed_at == ranks:
            return
        gate(pool, ranks, record, self.reporter, lambda: self.interrupts.requested, self.start_timeout_s)
        self.passed_at = ranks

    def _resizes(self, end: AttemptEnd) -> bool:
        """Whether the attempt was ended for another size or place, and by nothing else."""
        if self.attempt is None or self.attempt.resize_to is None or self.interrupts.requested:
            return False
        return end.state is RunState.STOPPED if end.ending is None else self.attempt.called_off

    def _resize(self, record: RecordWriter) -> None:
        assert self.attempt is not None
        before, size = self.planned.plan.world_size, self.attempt.resize_to
        assert size is not None
        record.event("resized", ranks=before, to=size)
        self.opened = resized(self.opened, size)

    def _killed(self, claim: Claim) -> Fate:
        """End the ranks now; what they have reported still counts."""
        self.store.give_up()
        kill_here(self.opened.view)
        if self.attempt is not None:
            self.attempt.group.done.wait(KILL_S)
            self.ends.append(replace(self.attempt.end(), ending=None))
        return self._finish(claim, RunState.STOPPED, "killed")

    def _prepare(self) -> BackgroundPreparation:
        return BackgroundPreparation(
            self.planned.job,
            self.planned.root,
            self.opened.store,
            self.planned.storage,
            self.session,
            on_note=self.reporter.note,
        )

    def _claim(self) -> Claim:
        """Become the run's one writer, then see to what an earlier attempt left behind on this machine."""
        log = self.opened.view.log
        before = newest_claim(log.read())
        attempt = f"{len(self.opened.view.attempts()) + 1:04d}-{random.token_hex(4)}"
        claim = log.claim(
            attempt,
            [this_process("driver")],
            job=self.planned.job.to_dict(),
            root=str(self.planned.root),
            job_digest=self.planned.digest,
            pool_digest=self.planned.pool.digest,
        )
        if before is not None:
            self._see_to(before)
        return claim

    def _see_to(self, before: Entry) -> None:
        own = this_process("driver")
        left = [member for member in members(self.opened.view, before.attempt) if not member.same_process(own)]
        end_leftovers(left, on_event=self.reporter.note)
        bring_home(self.opened.store, (*self.names, before.attempt), self.hidden)

    def _write_facts(self, claim: Claim) -> None:
        facts = {
            "schema": SCHEMA,
            "job": self.planned.job.to_dict(),
            "job_digest": self.planned.digest,
            "pool": self.planned.pool.pool.name,
            "pool_digest": self.planned.pool.digest,
            "price_per_accelerator_hour": self.planned.pool.pool.price_per_accelerator_hour,
            "plan": self.planned.plan.to_dict(),
            "versions": installed_versions(),
            "cwd": os.getcwd(),
            "at": round(time.time(), 3),
        }
        self.opened.store.put(keys.facts(*self.names, claim.attempt), json.dumps(facts).encode())

    def _judge(self, end: AttemptEnd, record: RecordWriter) -> Retry | Stop:
        assert end.ending is not None
        why = end.ending.error.why if end.ending.error is not None else None
        record.event("failed", cause=end.ending.cause, what=end.ending.what, why=why)
        committed = self.opened.view.log.newest_commit()
        step = committed.step if committed and committed.step else 0
        self.failures.append(Failure(end.ending.cause, end.step, step, end.ending.fingerprint))
        return decide(self.failures)

    def _pause(self, ending: Ending, verdict: Retry) -> None:
        where = "from the newest checkpoint" if self.opened.view.log.newest_commit() else "from the beginning"
        self.reporter.warn(f"{ending.what}; trying again in {verdict.after_s:.0f} s {where}")
        deadline = time.monotonic() + verdict.after_s
        while time.monotonic() < deadline and not self.interrupts.requested:
            time.sleep(TICK_S)
        self.clock.switch(Phase.START)

    def _finish(self, claim: Claim, state: RunState, reason: str, owner: Owner = "unknown") -> Fate:
        """Write the end into the log and the record; a fenced attempt may write nothing any more."""
        last = self.ends[-1] if self.ends else AttemptEnd(None, state, 0)
        committed = self.opened.view.log.newest_commit()
        fate = Fate(
            state=state,
            reason=reason,
            step=last.step,
            total_steps=self.opened.view.log.total(),
            committed_step=committed.step if committed else None,
            attempts=len(self.failures) + (0 if state is RunState.FAILED else 1),
            wall_s=time.time() - self.began_at,
            owner=owner,
            ending=last.ending,
            buckets=self._buckets(),
            timeline_s=self._timeline(),
            metrics=last.metrics,
        )
        if self.ray_job is not None and over_for_good(state, reason, owner):
            self.ray_job.take_retries()
        if reason != Cause.FENCED:
            self.opened.store.put(keys.summary(*self.names, claim.attempt), json.dumps(fate.to_dict()).encode())
            claim.state(state, reason, owner=owner, step=fate.step)
        return fate

    def _buckets(self) -> dict[str, float]:
        """The driver counts the ranks' time as compute; what they measured themselves takes its place."""
        totals = self.clock.totals()
        unclaimed_s = totals.pop(Phase.COMPUTE.value) - sum(end.window_s for end in self.ends)
        totals[Phase.IDLE.value] += max(0.0, unclaimed_s)
        for end in self.ends:
            totals = place_ranks(totals, end.window_s, end.before_s, end.ranks)
            totals = set_apart(totals, end.stalled_s, Phase.HANG)
        return totals

    def _timeline(self) -> dict[str, float]:
        first = self.ends[0].timeline_s if self.ends else {}
        ray = {"ray": self.ray_ready_s} if self.ray_ready_s is not None else {}
        return {**ray, **first}

    def _on_first_signal(self) -> None:
        trains = self.attempt is not None and self.attempt.gone
        how = "after the current step, with a checkpoint" if trains else "before the first step"
        self.reporter.warn(f"stopping {how}; once more ends it at once")
