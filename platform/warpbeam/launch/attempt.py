"""One attempt from its claim to its end: workers up, data there, go; then watch until all ranks have ended.

An attempt decides nothing about a next one: it says how it ended.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from warpbeam.checkpoint.log import Claim
from warpbeam.errors import WarpbeamError
from warpbeam.launch import spares
from warpbeam.launch.begin import Opened
from warpbeam.launch.elastic import Growth, free_room, size_for
from warpbeam.launch.failure import Cause
from warpbeam.launch.launch_watch import LaunchWatch, limits
from warpbeam.launch.local_logs import bring_home, keep_of_record, log_dir
from warpbeam.launch.notice import leaving_s
from warpbeam.launch.own_code import python_path
from warpbeam.launch.preparation import BackgroundPreparation
from warpbeam.launch.rank import SCHEMA, RankTask
from warpbeam.launch.rank_watch import RankWatch
from warpbeam.launch.ray_nodes import ship_from_other_nodes
from warpbeam.launch.ray_room import waiting_for
from warpbeam.launch.ray_session import RaySession, threads_per_rank
from warpbeam.launch.ray_train import Ending, WorkerGroup, find_ours, resources_per_rank
from warpbeam.launch.same_data import check_same_data
from warpbeam.launch.same_name import Begin
from warpbeam.launch.self_diagnosis import SelfDiagnosis
from warpbeam.launch.watch import AttemptWatch, Progress
from warpbeam.record import keys
from warpbeam.record.phases import Phase, PhaseClock
from warpbeam.record.states import RunState
from warpbeam.record.stop import request_stop
from warpbeam.record.writer import RecordWriter, read_steps

TICK_S = 0.1
NOTICE_S = 2.0  # between two looks for machines that will be taken away; a spot notice comes 30 s ahead and more
WAITING_S = 10.0  # how long ranks may take to appear before we ask Ray why they do not


class Reporter(Protocol):
    """Whoever watches the driver: a terminal, a log."""

    def note(self, text: str) -> None:
        """Something happened."""

    def warn(self, text: str) -> None:
        """Something that a person should look at."""

    def preparing(self, done: int, of: int, rows: int, tokens: int) -> None:
        """Training data is being prepared."""

    def training(self, progress: Progress) -> None:
        """The newest known progress; called often."""


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended.

    Args:
        ending: why it ended early; None when the engine returned by itself.
        state: the engine's word, when it returned: done or stopped.
        step: the last step that was seen.
        window_s: how long the ranks had the word to train.
        stalled_s: how much of it had passed without progress when it was ended for that.
        before_s: how much of it had passed when their clocks began.
        ranks: their bucket totals, as far as they reported.
    """

    ending: Ending | None
    state: RunState | None
    step: int
    window_s: float = 0.0
    stalled_s: float = 0.0
    before_s: float = 0.0
    ranks: list[dict[str, float]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    timeline_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Attempt:
    """One claim, one worker group. `stop_wanted` is asked on every tick.

    `resize_to` is set when it was ended to go on with so many ranks: another one of `sizes`, or as many elsewhere.
    """

    opened: Opened
    claim: Claim
    session: RaySession
    preparation: BackgroundPreparation
    clock: PhaseClock
    record: RecordWriter
    reporter: Reporter
    stop_wanted: Callable[[], bool]
    hidden: list[str]
    began_at: float
    start_timeout_s: float
    sizes: tuple[int, ...] = ()
    resize_to: int | None = None
    called_off: bool = False

    def __post_init__(self) -> None:
        planned = self.opened.planned
        self.plan, self.pool = planned.plan, planned.pool.pool
        self.names = (planned.job.team, planned.job.name, self.claim.attempt)
        self.log_dir = log_dir(self.names)
        self.watch = AttemptWatch(self.opened.view, self.claim.attempt, self.plan.world_size)
        self.group = WorkerGroup(self.plan, self.pool, self._task(), self._runtime_env(), own_ray=self.session.is_local)
        self.timeline_s: dict[str, float] = {}
        self._state = RunState.STARTING
        self.gone = False
        self._compute_before_s = self.clock.totals()[Phase.COMPUTE]
        self._window_at: tuple[float, float] | None = None
        self._stop_sent = False
        train, doctor = planned.job.train, SelfDiagnosis(self.opened.view, self.claim.attempt, self.reporter.warn)
        self._ranks = RankWatch(
            self.watch, self.record, self.reporter, self.log_dir, train.stall_after_s, self.group.abort, doctor.ask
        )
        late = limits(train.launch_after_s, train.stall_after_s)
        self._launch = LaunchWatch(
            self.watch, self.record, self.reporter, doctor.ask, self._why_waiting, late, self.log_dir
        )
        self._growth: Growth | None = None
        self._next_look_at = time.monotonic() + WAITING_S
        self._next_notice_at = 0.0

    def run(self) -> AttemptEnd:
        """Blocks until every rank has ended. Raises what the preparation failed with."""
        self.group.start()
        try:
            while not self.group.done.wait(TICK_S):
                self._tick()
            self.preparation.check()
        except BaseException:
            self._call_off()
            raise
        return self.end()

    def _tick(self) -> None:
        progress = self.watch.look()
        if self.stop_wanted() and (progress.ranks_up == 0 or not self.gone):
            raise StoppedEarly
        if not self.gone:
            self._try_go()
        else:
            self.preparation.check()  # data that turns out bad ends a training that has begun on its first part
            self.reporter.training(progress)
            self._ranks.tick()
        if self.watch.first_step_at is None:
            self._launch.tick(gone=self.gone)
        if self.stop_wanted() and not self._stop_sent:
            request_stop(self.opened.view, by="driver", reason="interrupted")
            self._stop_sent = True
        self._note_state(progress)
        if self._state is RunState.RUNNING and self.resize_to is None and not self._stop_sent:
            self._grow()
            self._move_away()
        if progress.ranks_up == 0 and time.monotonic() > self._next_look_at:
            self._next_look_at = time.monotonic() + WAITING_S
            self._note_waiting()

    def _try_go(self) -> None:
        """Give the ranks the word once the data's place and the number of steps are known."""
        places = self.preparation.places
        self.reporter.preparing(*self.preparation.counts)
        total = self.opened.view.log.total() if self._total_holds() else None
        total = total if total is not None else self.preparation.total_steps()
        if places is None or total is None:
            return
        self._check_data(places.train)
        self._mark("data")
        if total != self.opened.view.log.total():
            self.claim.total(total)
        self.watch.total_steps = total
        self._word(True, {"data": {"train_prefix": places.train, "eval_prefix": places.eval}})
        self.gone = True
        if self._state is not RunState.WAITING:
            self._open_window()

    def _check_data(self, train_prefix: str) -> None:
        if isinstance(self.opened.decision, Begin):
            return
        changes = getattr(self.opened.decision, "changes", ())
        if not any(change.key.startswith("data.") for change in changes):  # those were judged by their own kind
            check_same_data(self.opened.view, train_prefix)

    def _open_window(self) -> None:
        """From here on, what the ranks measure themselves is where the time goes."""
        self.clock.switch(Phase.COMPUTE)
        self._window_at = (time.time(), self._window_s())

    def _window_s(self) -> float:
        """How long this attempt's window has been open: the driver's clock counts it as compute."""
        return self.clock.totals()[Phase.COMPUTE] - self._compute_before_s

    def _total_holds(self) -> bool:
        """Whether a total that an earlier attempt froze is still this job's."""
        if isinstance(self.opened.decision, Begin):
            return False
        changes = getattr(self.opened.decision, "changes", ())
        return not any(change.key in ("train.epochs", "train.max_steps") for change in changes)

    def _note_state(self, progress: Progress) -> None:
        """Bring the log up to what is seen: who the ranks are, and that they train."""
        if "workers" not in self.timeline_s and progress.ranks_up == progress.world_size:
            self.claim.state(RunState.STARTING, members=self.watch.ranks.values())
            self._mark("workers")
            self._state = RunState.STARTING
            if not self.gone:
                self.clock.switch(Phase.PREPARE)
            else:
                self._open_window()
        if self._state is RunState.STARTING and self.watch.first_step_at is not None:
            self.claim.state(RunState.RUNNING)
            self._state = RunState.RUNNING
            self.timeline_s["first_step"] = self.watch.first_step_at - self.began_at

    def _why_waiting(self) -> str | None:
        need = {name: amount * self.plan.world_size for name, amount in resources_per_rank(self.pool).items()}
        return waiting_for(need)

    def _note_waiting(self) -> None:
        why = self._why_waiting()
        if why is None:
            return
        self.reporter.note(f"{why}; giving up {self.start_timeout_s:.0f} s after the start")
        if self._state is not RunState.WAITING:
            self.claim.state(RunState.WAITING, why)
            self._state = RunState.WAITING
            self.clock.switch(Phase.QUEUE)
        self._shrink()

    def _shrink(self) -> None:
        """Do not wait for all ranks while fewer would do and have room."""
        if not self.sizes or self.plan.world_size == self.sizes[0]:
            return
        size = size_for(self.sizes, room := free_room(resources_per_rank(self.pool)))
        if room >= size < self.plan.world_size:
            self.resize_to = size
            self.reporter.note(f"there is room for {size} of {self.plan.world_size} ranks: going on with {size}")
            self._call_off()

    def _grow(self) -> None:
        """Ask for the next size; once it is there, end after the next step with a checkpoint to go on with it."""
        if not self.sizes or self.plan.world_size == self.sizes[-1] or time.monotonic() < self._next_look_at:
            return
        self._next_look_at = time.monotonic() + WAITING_S
        if self._growth is None:
            self._growth = Growth(self.sizes, self.plan.world_size, resources_per_rank(self.pool))
        elif self._growth.there:
            self.resize_to = self._growth.size
            self.reporter.note(f"there is room for {self.resize_to} ranks: going on with them from a checkpoint")
            request_stop(self.opened.view, by="driver", reason="resize")

    def _move_away(self) -> None:
        """End after the next step with a checkpoint, to go on elsewhere, when a machine of ours will be taken away."""
        if self.session.is_local or time.monotonic() < self._next_notice_at:
            return
        self._next_notice_at = time.monotonic() + NOTICE_S
        left_s = leaving_s(time.time())
        if left_s is None or self.resize_to is not None:
            return
        self.resize_to = self.plan.world_size
        when = "" if math.isinf(left_s) else f" in {max(0.0, left_s):.0f} s"
        self.record.event("preemption_notice", left_s=None if math.isinf(left_s) else round(left_s, 1))
        self.reporter.note(f"a machine of this run will be taken away{when}: saving now, to go on elsewhere")
        request_stop(self.opened.view, by="driver", reason="preempted")

    def end(self) -> AttemptEnd:
        """Collect what the ranks left; once they have ended."""
        self.clock.switch(Phase.IDLE)
        if self.group.ending and not self.session.is_local:
            ship_from_other_nodes(self._spec(), self.names)
        try:
            self.watch.read()
        except WarpbeamError as error:
            self.reporter.warn(f"the last metrics could not be read: {error.what}")
        beats = self.opened.view.heartbeats(self.claim.attempt)
        ranks = [beat for who, (beat, _) in beats.items() if who.startswith("rank-")]
        clocks = [beat for beat in ranks if "buckets" in beat]
        outcome = None if self.group.ending else self._outcome()
        steps = [int(beat["step"]) for beat in ranks] + [int(row["step"]) for row in self.watch.rows[-1:]]
        step = max([0, *steps, *read_steps(self.log_dir).values()])
        ending = self._ranks.ending or self.group.ending
        if ending is None and outcome is None:
            ending = Ending(Cause.UNKNOWN, "the ranks ended without an outcome", "no_outcome")
        bring_home(self.opened.store, self.names, self.hidden, failed=ending is not None)
        if ending is not None:
            seen = self._ranks.lookout.history()
            keep_of_record(self.opened.store, self.names, seen, self.plan.world_size, self.hidden)
        return AttemptEnd(
            ending=ending,
            state=RunState(outcome["state"]) if outcome else None,
            step=int(outcome["step"]) if outcome else step,
            window_s=self._window_s(),
            stalled_s=self._ranks.quiet_s() if self._ranks.ending else 0.0,
            before_s=self._before_s(clocks),
            ranks=[beat["buckets"] for beat in clocks],
            metrics=outcome["metrics"] if outcome else {},
            timeline_s=self.timeline_s,
        )

    def _before_s(self, clocks: list[dict[str, Any]]) -> float:
        """How much of the window had passed at the mean moment at which the ranks' clocks began."""
        if self._window_at is None or not clocks:
            return 0.0
        began = [float(beat["at"]) - sum(beat["buckets"].values()) for beat in clocks]
        opened_at, open_before_s = self._window_at
        return open_before_s + max(0.0, float(sum(began) / len(began)) - opened_at)

    def _call_off(self) -> None:
        """End the ranks: those that wait, those on their way and, at a second Ctrl-C, those that train."""
        self.called_off = True
        if not self.gone:
            self._word(False, {})
        self.group.abort()

    def _word(self, go: bool, spec: dict[str, Any]) -> None:
        word = {"schema": SCHEMA, "go": go, "spec": spec}
        self.opened.store.put(keys.go(*self.names), json.dumps(word).encode())

    def _outcome(self) -> dict[str, Any] | None:
        key = keys.outcome(*self.names)
        if self.opened.store.head(key) is None:
            return None
        outcome: dict[str, Any] = json.loads(self.opened.store.get(key))
        return outcome

    def _mark(self, what: str) -> None:
        self.timeline_s[what] = time.time() - self.began_at
        self.record.event("reached", what=what, after_s=round(self.timeline_s[what], 3))

    def _spec(self) -> dict[str, Any]:
        """The engine's RunSpec, but for the places of the data."""
        planned = self.opened.planned
        return {
            "job": planned.job.to_dict(),
            "root": str(planned.root),
            "pool": self.pool.to_dict(),
            "storage": planned.storage.to_dict(),
            "attempt": self.claim.attempt,
            "claim": self.claim.to_dict(),
            "data": {},
            "launcher": "ray",
            "plan": self.plan.to_dict(),
        }

    def _runtime_env(self) -> dict[str, Any]:
        job = self.opened.planned.job
        if job.train.spares_after_s is None:
            return {}
        return spares.runtime_env(self.plan.strategy, on_cpu=self.pool.is_cpu, env=job.env)

    def _task(self) -> RankTask:
        planned = self.opened.planned
        team, run, attempt = self.names
        return RankTask(
            team=team,
            run=run,
            attempt=attempt,
            spec=json.dumps(self._spec()),
            root=str(planned.root),
            bundle_root=python_path(planned.root)[-1],
            log_dir=str(self.log_dir),
            threads=threads_per_rank(self.pool, self.plan.world_size),
            contract={} if self.session.is_local or self.pool.image is None else dict(self.pool.image.versions),
        )


class StoppedEarly(Exception):
    """Asked to stop before the ranks had begun: there is nothing to save."""


def explain_preparation(error: BaseException) -> Ending:
    """Why the preparation failed, as an ending."""
    ours = find_ours(error)
    if ours is None:
        return Ending(Cause.UNKNOWN, f"preparing the data failed: {type(error).__name__}: {error}", "preparation")
    causes = {2: Cause.BAD_INPUT, 1: Cause.USER_CODE}
    return Ending(causes.get(ours.exit_code, Cause.INFRA), ours.what, ours.reason, ours)
