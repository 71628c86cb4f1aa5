"""What heartbeats show: hangs and slow ranks, and above all what is none."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from warpbeam.record.monitor import Beat, Finding, Look, findings

EVERY_S = 5.0


def beat(rank: int, at: float, since: float, **known: object) -> Beat:
    """A rank's heartbeat at `at` that has been in its phase since then; idle at one line unless said otherwise."""
    usual = {"phase": "backward", "seq": 40, "step": 20, "usual_s": 2.0, "stack": 7, "cpu_s": 50.0}
    return Beat(rank=rank, age_s=1.0, at=at, in_phase_s=at - since, **usual | known)  # type: ignore[arg-type]


def over(seconds: float, *ranks: dict[str, object], since: float = 0.0) -> list[tuple[Finding, ...]]:
    """What is found at each look of a driver that looks as often as heartbeats are written.

    A rank is what `beat` takes; `stops` is when its heartbeats end, `busy` that it spends processor time.
    """
    looks: list[Look] = []
    found = []
    for turn in range(1, int(seconds / EVERY_S) + 1):
        now = since + turn * EVERY_S
        look = {}
        for rank, about in enumerate(ranks):
            known = {key: value for key, value in about.items() if key not in ("stops", "busy")}
            wrote = min(now, float(about.get("stops", now)))  # type: ignore[arg-type]
            if about.get("busy"):
                known |= {"cpu_s": 0.9 * wrote, "stack": int(wrote)}
            look[rank] = replace(beat(rank, wrote, since, **known), age_s=now - wrote + 1.0)
        looks.append(look)
        found.append(findings(looks[-12:]))
    return found


def certain_after(found: list[tuple[Finding, ...]]) -> float | None:
    """Seconds until something was certain."""
    return next((n * EVERY_S for n, some in enumerate(found, start=1) if any(one.certain for one in some)), None)


def test_a_stopped_rank_is_named_within_three_quarters_of_a_minute() -> None:
    found = over(90, {}, {"stops": 0.0})
    after = certain_after(found)
    assert after is not None
    assert 30 <= after <= 45
    (last,) = found[-1]
    assert (last.kind, last.rank, last.certain) == ("absent", 1, True)
    assert "heartbeats: rank 1 has given no sign for 91 s, the others wait in backward" in last.what


def test_long_phases_give_more_time() -> None:
    after = certain_after(over(300, {"usual_s": 60.0}, {"stops": 0.0, "usual_s": 60.0}))
    assert after is not None
    assert 180 <= after <= 195


def test_a_symmetric_stall_needs_stacks_and_processor_time_unchanged() -> None:
    still = over(60, {}, {})
    assert 30 <= (certain_after(still) or 0) <= 45
    assert still[-1][0].kind == "stalled"
    assert certain_after(over(600, {}, {"busy": True})) is None
    assert certain_after(over(600, {"busy": True}, {"busy": True})) is None


def test_a_rank_behind_the_others_is_named_and_ended_only_when_it_does_nothing() -> None:
    behind = {"phase": "forward", "usual_s": 1.0}
    (found,) = over(60, behind, {}, {})[-1]
    assert (found.kind, found.rank, found.certain) == ("lagging", 0, True)
    (found,) = over(600, {**behind, "busy": True}, {}, {})[-1]
    assert (found.kind, found.rank, found.certain) == ("lagging", 0, False)


def test_a_rank_that_has_left_the_loop_is_what_the_others_wait_for() -> None:
    (found,) = over(60, {}, {"left": True, "phase": "checkpoint", "step": 12, "usual_s": None})[-1]
    assert (found.kind, found.rank, found.certain) == ("left", 1, True)
    assert "after step 12" in found.what


@pytest.mark.parametrize(
    ("what", "ranks"),
    [
        ("a JIT build in step 1", [{"phase": "forward", "usual_s": None}] * 2),
        ("a JIT build on one rank in step 1", [{"phase": "forward", "usual_s": None, "busy": True}, {"usual_s": None}]),
        ("an evaluation of 20 steps that says nothing", [{"busy": True, "usual_s": 3.0, "phase": "sync"}] * 2),
        ("an evaluation on rank 0 alone", [{"phase": "callbacks", "busy": True, "usual_s": 0.1, "seq": 39}, {}]),
        ("a stalled upload", [{"phase": "checkpoint", "usual_s": 1.0}] * 2),
        ("a stalled upload that takes a rank's heartbeats along", [
            {"phase": "checkpoint", "usual_s": 1.0}, {"phase": "checkpoint", "usual_s": 1.0, "stops": 3.0}]),
        ("data that does not come", [{"phase": "waiting for part 3", "usual_s": 1.0}, {}]),
        ("a store that is away for everybody", [{"stops": 1.0}, {"stops": 2.0}]),
    ],
)  # fmt: skip
def test_no_alarm(what: str, ranks: list[dict[str, object]]) -> None:
    assert certain_after(over(600, *ranks)) is None, what


def test_no_alarm_in_steps_of_three_minutes() -> None:
    """The loop says nothing in between, asleep (it may wait for a device), step after step."""
    for step in range(3):
        usual = None if step == 0 else 180.0
        found = over(180, *[{"phase": "forward", "usual_s": usual, "seq": step}] * 2, since=step * 180.0)
        assert certain_after(found) is None
        assert not any(found)


def paced(alone_s: list[float], step_s: float, steps: int) -> list[Look]:
    """Looks at ranks that take so long for forward, and wait for the slowest in backward."""
    looks = []
    for look in (0, steps // 2, steps):
        at = look * step_s
        spent = [{"forward": alone * look, "backward": (step_s - alone) * look} for alone in alone_s]
        looks.append({
            rank: replace(beat(rank, at, at - 0.1, step=look, usual_s=step_s, spent=of_rank), stack=None, cpu_s=None)
            for rank, of_rank in enumerate(spent)
        })  # fmt: skip
    return looks


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_slow_rank_is_named_and_never_ended(ranks: int) -> None:
    (found,) = findings(paced([0.2] * (ranks - 1) + [0.9], 1.3, 40))
    assert (found.kind, found.rank, found.certain) == ("slow", ranks - 1, False)


def test_ranks_that_differ_a_little_or_for_a_few_steps_are_not_slow() -> None:
    assert findings(paced([0.2, 0.25], 1.3, 40)) == ()
    assert findings(paced([0.2, 0.9], 1.3, 4)) == ()
    assert findings(paced([0.001, 0.02], 1.3, 40)) == (), "slower, but that costs nothing"


def test_nothing_is_found_in_nothing() -> None:
    assert findings([]) == ()
    assert findings([{}]) == ()
    for before, now in pairwise(paced([0.5], 1.0, 20)):
        assert findings([before, now]) == ()


def test_a_first_sign_of_life_is_read_like_any_other() -> None:
    first = Beat.from_dict({"role": "rank-12", "at": 5, "step": 0, "phase": "joining"}, 2.0)
    assert (first.rank, first.usual_s, first.is_late) == (12, None, False)
