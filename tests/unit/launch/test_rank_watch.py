"""How the driver watches its ranks: seldom while rows come, soon when they do not; and a launch by its phases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warpbeam.checkpoint.members import this_process
from warpbeam.errors import InfraError
from warpbeam.launch.failure import Cause
from warpbeam.launch.launch_watch import LaunchWatch, Stage, limits, stage
from warpbeam.launch.lookout import CALM_READ_S, Lookout
from warpbeam.launch.rank_watch import RankWatch, ask_for_stacks
from warpbeam.launch.watch import AttemptWatch

GONE = {**this_process("rank-0").to_dict(), "pid": 2**22 + 1}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class View:
    """Heartbeats as the test says; `asked` counts reads, of which each takes `cost_s`."""

    team, run, store = "team", "run", None

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.beats: dict[str, dict[str, Any]] = {}
        self.ages: dict[str, float] = {}
        self.asked = 0
        self.cost_s = 0.0
        self.away = False

    def say(self, rank: int, **about: Any) -> None:
        who = f"rank-{rank}"
        usual = {"step": 9, "phase": "backward", "seq": 18, "usual_s": 1.0, "stack": 1, "cpu_s": 3.0, "beats": 1}
        self.beats[who] = {**GONE, "role": who, "at": self.clock.now, **usual, **about}

    def heartbeats(self, attempt: str) -> dict[str, tuple[dict[str, Any], float]]:
        if self.away:
            raise InfraError("the store is away")
        self.asked += 1
        self.clock.now += self.cost_s
        return {who: (beat, self.ages.get(who, 1.0)) for who, beat in self.beats.items()}


class Told:
    """The record, the terminal and the doctor, all ears."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.warned: list[str] = []
        self.asked: list[str] = []
        self.aborted = 0

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def flush_soon(self) -> None:
        return

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def diagnose(self, why: str) -> None:
        self.asked.append(why)

    def abort(self) -> None:
        self.aborted += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(clock: Clock) -> View:
    return View(clock)


def test_while_rows_come_three_reads_a_minute_are_enough(view: View, clock: Clock) -> None:
    lookout = Lookout(view, "a1", clock)  # type: ignore[arg-type]
    for _ in range(600):
        clock.now += 1
        lookout.look(quiet_s=2.0)
    assert view.asked <= 600 / CALM_READ_S


def test_reading_takes_a_fiftieth_of_the_time_at_most(view: View, clock: Clock) -> None:
    lookout = Lookout(view, "a1", clock)  # type: ignore[arg-type]
    view.cost_s = 2.0  # thousands of ranks
    began = clock.now
    while clock.now - began < 2000:
        clock.now += 1
        lookout.look(quiet_s=60.0)
    assert view.asked * view.cost_s <= (clock.now - began) / 50 + 2 * view.cost_s


def watching(view: View, tmp_path: Path) -> tuple[RankWatch, Told]:
    told = Told()
    watch = AttemptWatch(view, "a1", 2, now=view.clock)  # type: ignore[arg-type]
    ranks = RankWatch(watch, told, told, tmp_path, 600, told.abort, told.diagnose)  # type: ignore[arg-type]
    ranks.lookout = Lookout(view, "a1", view.clock)  # type: ignore[arg-type]
    return ranks, told


def test_a_rank_that_is_gone_ends_the_attempt_and_is_named(view: View, clock: Clock, tmp_path: Path) -> None:
    ranks, told = watching(view, tmp_path)
    ranks.quiet_s = lambda: clock.now - 1000.0  # type: ignore[method-assign]
    began, view.beats = clock.now, {}
    while ranks.ending is None and clock.now - began < 100:
        clock.now += 5
        view.say(0, in_phase_s=clock.now - began)
        view.say(1, in_phase_s=0.0, at=began)
        view.ages["rank-1"] = clock.now - began
        ranks.tick()
    assert ranks.ending is not None
    assert (ranks.ending.cause, told.aborted) == (Cause.STALLED, 1)
    assert clock.now - began <= 45
    assert "rank 1 has given no sign" in ranks.ending.what
    assert told.events[-1]["rank"] == 1
    before = view.asked
    ranks.tick()
    assert view.asked == before, "ended once"


def test_what_is_not_certain_goes_to_the_doctor_once(view: View, clock: Clock, tmp_path: Path) -> None:
    ranks, told = watching(view, tmp_path)
    ranks.quiet_s = lambda: clock.now - 1000.0  # type: ignore[method-assign]
    for turn in range(40):
        clock.now += 5
        for rank in (0, 1):
            view.say(rank, in_phase_s=clock.now - 1000.0, stack=turn, cpu_s=5.0 * turn)
        ranks.tick()
    assert (told.aborted, len(told.asked), len(told.events)) == (0, 1, 1)
    assert "all ranks stand in backward" in told.asked[0]


def test_a_store_that_is_away_tells_nothing(view: View, clock: Clock, tmp_path: Path) -> None:
    ranks, told = watching(view, tmp_path)
    ranks.quiet_s = lambda: 500.0  # type: ignore[method-assign]
    view.away = True
    clock.now += 500
    ranks.tick()
    assert told.events == []


def test_only_ranks_of_this_machine_that_run_are_asked_for_stacks(tmp_path: Path) -> None:
    assert ask_for_stacks({"rank-0": GONE}, tmp_path, wait_s=0.1) == []


def test_the_stages_of_a_launch() -> None:
    assert stage(signs=1, joined=0, world_size=2, gone=False) is Stage.WORKERS
    assert stage(signs=2, joined=1, world_size=2, gone=True) is Stage.GROUP
    assert stage(signs=2, joined=2, world_size=2, gone=False) is None, "it waits for data"
    assert stage(signs=2, joined=2, world_size=2, gone=True) is Stage.STEP
    assert limits(180, 600) == {"workers": 180, "group": 180, "first collective": 180, "first step": 600}


def launching(view: View, tmp_path: Path, why: str | None = None) -> tuple[LaunchWatch, Told, AttemptWatch]:
    told = Told()
    watch = AttemptWatch(view, "a1", 2, now=view.clock)  # type: ignore[arg-type]
    launch = LaunchWatch(
        watch, told, told, told.diagnose, lambda: why, limits(60, 300), tmp_path, view.clock  # type: ignore[arg-type]
    )  # fmt: skip
    return launch, told, watch


def test_a_worker_that_never_came_is_named_once_with_rays_reason(view: View, clock: Clock, tmp_path: Path) -> None:
    launch, told, watch = launching(view, tmp_path, "waiting for 8 CPU (4 in the cluster, 4 free)")
    watch.joining = {"rank-0"}
    for _ in range(30):
        launch.tick(gone=False)
        clock.now += 5
    (event,) = told.events
    assert event["what"] == (
        "launch: 1 of 2 workers have started, no sign of rank 1; waiting for 8 CPU (4 in the cluster, 4 free)"
    )
    assert (len(told.asked), len(told.warned)) == (1, 1)


def test_a_group_that_does_not_form_a_collective_and_a_step(view: View, clock: Clock, tmp_path: Path) -> None:
    launch, told, watch = launching(view, tmp_path)
    watch.joining = {"rank-0", "rank-1"}
    launch.tick(gone=False)
    clock.now += 61
    launch.tick(gone=False)
    watch.joining, watch.ranks = set(), {"rank-0": None, "rank-1": None}  # type: ignore[dict-item]
    view.say(0, phase="start")
    view.say(1, phase="loading")
    clock.now += 1000
    launch.tick(gone=False)  # data is being prepared: no limit of ours
    launch.tick(gone=True)
    clock.now += 61
    launch.tick(gone=True)
    view.say(0, phase="forward")
    clock.now += 250
    launch.tick(gone=True)
    assert [event["stage"] for event in told.events] == ["group", "first collective", "first step"]
    assert "the first collective has not ended on rank 0" in told.events[1]["what"]
    assert told.events[2]["what"] == "launch: no first step: rank 0 stands in forward, rank 1 stands in loading"
    watch.first_step_at = clock.now
    clock.now += 5000
    launch.tick(gone=True)
    assert len(told.events) == 3
