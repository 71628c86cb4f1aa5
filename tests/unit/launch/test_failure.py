from __future__ import annotations

import pytest

from warpbeam.launch.failure import Cause, Failure, Retry, Stop, decide


def death(step: int, committed: int = 0, error: str = "SIGKILL", cause: Cause = Cause.WORKER_DIED) -> Failure:
    return Failure(cause, step, committed, error)


def test_a_first_death_is_tried_again() -> None:
    assert decide([death(7)]) == Retry(1.0)


def test_the_same_death_at_the_same_step_twice_is_a_bug() -> None:
    assert decide([death(7), death(7)]) == Stop("same_failure_twice", "ml")
    assert isinstance(decide([death(7), death(8)]), Retry)
    assert isinstance(decide([death(7), death(7, error="SIGSEGV")]), Retry)
    assert isinstance(decide([death(7), death(7, cause=Cause.NODE_LOST)]), Retry)
    stall = death(7, cause=Cause.STALLED, error="stalled")
    assert decide([stall, stall]) == Stop("same_failure_twice", "ml")
    assert isinstance(decide([death(7), stall]), Retry)


def test_three_retries_without_progress() -> None:
    history = [death(step) for step in (1, 2, 3)]
    assert decide(history) == Retry(15.0)
    assert decide([*history, death(4)]) == Stop("too_many_failures", "ml")


def test_a_new_checkpoint_renews_the_budget() -> None:
    history = [death(step) for step in (1, 2, 3)] + [death(14, committed=10)]
    assert decide(history) == Retry(1.0)


@pytest.mark.parametrize(
    ("cause", "owner"),
    [
        (Cause.BAD_INPUT, "ml"),
        (Cause.USER_CODE, "ml"),
        (Cause.NO_RESOURCES, "platform"),
        (Cause.FENCED, "infra"),
        (Cause.PLATFORM, "platform"),
        (Cause.DISK_FULL, "infra"),
        (Cause.UNKNOWN, "unknown"),
    ],
)
def test_what_no_retry_can_mend_stops_at_once(cause: Cause, owner: str) -> None:
    assert decide([death(1, cause=cause)]) == Stop(cause.value, owner)  # type: ignore[arg-type]


def test_room_that_was_there_and_does_not_come_back_was_lost() -> None:
    missing = death(0, cause=Cause.NO_RESOURCES)
    assert decide([death(7, cause=Cause.NODE_LOST), missing]) == Stop("node_lost", "infra")
    assert decide([death(7), missing]) == Stop("node_lost", "infra")
    assert decide([death(0), missing]) == Stop("no_resources", "platform")


def test_every_cause_has_a_rule() -> None:
    for cause in Cause:
        decide([death(1, cause=cause)])
        decide([death(1, cause=cause)] * 9)
