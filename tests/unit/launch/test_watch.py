"""Whether an attempt moves, as its driver sees it."""

from __future__ import annotations

from typing import Any

from warpbeam.launch.watch import AttemptWatch


class View:
    """Heartbeats as the test sets them; `asked` counts the reads."""

    team, run, store = "team", "run", None

    def __init__(self) -> None:
        self.beats = [0, 0]
        self.asked = 0

    def heartbeats(self, attempt: str) -> dict[str, tuple[dict[str, Any], float]]:
        self.asked += 1
        ranks = {f"rank-{n}": ({"role": f"rank-{n}", "beats": beats}, 1.0) for n, beats in enumerate(self.beats)}
        return {"driver": ({"role": "driver"}, 1.0), **ranks}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def watching() -> tuple[AttemptWatch, View, Clock]:
    view, clock = View(), Clock()
    return AttemptWatch(view, "a1", 2, now=clock), view, clock  # type: ignore[arg-type]


def test_ranks_that_have_not_begun_are_not_stalled() -> None:
    watch, _, clock = watching()
    for _ in range(100):
        clock.now += 10
        assert watch.stalled(60) == []
    assert watch.moved_at is None


def test_signs_of_any_rank_are_progress() -> None:
    watch, view, clock = watching()
    for turn in range(50):
        view.beats[turn % 2] += 1
        assert watch.stalled(60) == []
        clock.now += 50


def test_no_sign_for_the_whole_time_is_a_stall() -> None:
    watch, view, clock = watching()
    view.beats = [4, 5]
    assert watch.stalled(60) == []
    began = clock.now
    stalled: list[dict[str, Any]] = []
    while not stalled:
        clock.now += 1
        stalled = watch.stalled(60)
    assert 60 <= clock.now - began <= 66
    assert [beat["role"] for beat in stalled] == ["rank-0", "rank-1"]


def test_rows_spare_the_store_the_question() -> None:
    watch, view, clock = watching()
    view.beats = [1, 1]
    watch.stalled(60)
    before = view.asked
    for _ in range(100):
        clock.now += 1
        watch.moved_at = clock.now  # a row came
        assert watch.stalled(60) == []
    assert view.asked == before
