"""Where a loop stands, and for how long that is usual."""

from __future__ import annotations

from warpbeam.record.standing_point import LOOK_S, UNKNOWN_S, StandingPoint


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pass_phases(point: StandingPoint, clock: Clock, *lengths_s: float) -> None:
    for length_s in lengths_s:
        point.mark("forward", passes=True)
        clock.now += length_s
        point.mark("sync")


def test_the_first_stay_does_not_count_once_there_are_others() -> None:
    clock = Clock()
    point = StandingPoint(clock)
    pass_phases(point, clock, 100.0)
    point.mark("forward")
    assert point.usual_s() == 100.0
    pass_phases(point, clock, 1.0, 3.0, 2.0)
    point.mark("forward")
    assert point.usual_s() == 3.0


def test_it_is_late_twice_after_the_usual_and_never_soon() -> None:
    clock = Clock()
    point = StandingPoint(clock)
    point.mark("forward")
    clock.now += UNKNOWN_S
    assert not point.is_late(), "nobody knows yet how long this takes"
    clock.now += 1
    assert point.is_late()
    pass_phases(point, clock, *(20.0 for _ in range(4)))
    point.mark("forward")
    clock.now += 39.0
    assert not point.is_late()
    clock.now += 2.0
    assert point.is_late()
    point.mark("forward")  # a sign of life in the same phase
    clock.now += LOOK_S
    assert not point.is_late()


def test_only_what_all_ranks_pass_orders_them() -> None:
    point = StandingPoint(Clock())
    for phase in ("data", "forward", "backward", "waiting for a part"):
        point.mark(phase, passes=phase == "forward")
    assert point.report()["seq"] == 1


def test_a_late_one_says_where_its_thread_is_and_what_it_has_spent() -> None:
    clock = Clock()
    point = StandingPoint(clock)
    point.mark("sync", passes=True)
    assert "stack" not in point.report()
    clock.now += UNKNOWN_S + 1
    first = point.report()
    second = point.report()
    assert first["cpu_s"] >= 0
    assert first["stack"] != second["stack"], "another line"


def test_time_is_spent_in_phases() -> None:
    clock = Clock()
    point = StandingPoint(clock)
    pass_phases(point, clock, 1.0, 2.0)
    assert point.report()["spent"] == {"forward": 3.0, "sync": 0.0}
