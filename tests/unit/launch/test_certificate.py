"""A certificate must fail for every way in which a resumed run can be another run."""

from __future__ import annotations

from typing import Any

import pytest

from warpbeam.launch.certificate import LOSS, NORM, SAMPLES, compare


def row(step: int, attempt: str = "a1", **changes: Any) -> dict[str, Any]:
    return {"step": step, "attempt": attempt, LOSS: 5.0 / step, NORM: 1.0 / step, SAMPLES: 1000 + step} | changes


CALM = [row(step) for step in range(1, 11)]
RANKS = {"a1": 2, "a2": 2, "a3": 1}


def test_a_run_that_was_killed_and_repeated_steps_is_equal() -> None:
    rows = [row(step) for step in range(1, 7)] + [row(step, "a2") for step in range(5, 11)]
    verdict = compare(CALM, rows, RANKS, 2)
    assert verdict.equal
    assert (verdict.steps, verdict.compared, verdict.bitwise_to, verdict.missing) == (10, 12, 10, ())


def test_rows_lost_with_a_process_are_said() -> None:
    verdict = compare(CALM, [row(1), row(2), *(row(step, "a2") for step in range(5, 11))], RANKS, 2)
    assert verdict.equal
    assert verdict.missing == (3, 4)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({SAMPLES: 7}, "other samples"),
        ({LOSS: 5.0 / 8 * (1 + 1e-12)}, LOSS),
        ({NORM: 0.125 * (1 + 1e-12)}, NORM),
        ({NORM: None}, NORM),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, Any], what: str) -> None:
    rows = [row(step, "a2", **(changes if step >= 8 else {})) for step in range(1, 11)]
    verdict = compare(CALM, rows, RANKS, 2)
    assert verdict.difference is not None
    assert (verdict.difference.step, verdict.difference.what) == (8, what)
    assert not verdict.to_dict()["equal"]


def test_another_number_of_ranks_may_round_otherwise_and_no_more() -> None:
    rows = [row(step) for step in range(1, 6)]
    rows += [row(step, "a3", **{LOSS: 5.0 / step * (1 + 1e-6)}) for step in range(5, 8)]
    rows += [row(step, "a2", **{LOSS: 5.0 / step * (1 + 1e-6)}) for step in range(8, 11)]
    verdict = compare(CALM, rows, RANKS, 2)
    assert verdict.equal
    assert verdict.bitwise_to == 4
    rows[-1] = row(10, "a2", **{LOSS: 0.5 * 1.01})
    assert not compare(CALM, rows, RANKS, 2).equal
    rows[-1] = row(10, "a2", **{SAMPLES: 1})
    assert not compare(CALM, rows, RANKS, 2).equal, "the samples are the same at any size"


def test_a_run_that_did_not_end_is_not_equal() -> None:
    verdict = compare(CALM, [row(step) for step in range(1, 10)], RANKS, 2)
    assert verdict.difference is not None
    assert verdict.difference.what == "the last step has no row"
    assert not compare(CALM, [*CALM, row(11)], RANKS, 2).equal
