"""The learning rate: bounded, continuous, at the peak after warm-up, at the minimum in the end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plan.jobs import job
from warpbeam.plan.schedule import learning_rate, lr_of, warmup_steps

KINDS = ("cosine", "linear", "constant", "wsd")

settings = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(KINDS),
        "warmup": st.one_of(st.integers(0, 50), st.floats(0, 0.5)),
        "min_lr_ratio": st.floats(0, 1),
        "decay": st.floats(0.01, 0.5),
        "peak_lr": st.floats(1e-8, 1),
    }
)


@given(settings, st.integers(1, 500))
def test_bounds(choice: dict, total: int) -> None:
    rates = [learning_rate(step, total, **choice) for step in range(1, total + 1)]
    peak = choice["peak_lr"]
    assert all(0 <= rate <= peak * (1 + 1e-12) for rate in rates)
    assert max(rates) == pytest.approx(peak), "the peak is reached"
    rising = min(warmup_steps(choice["warmup"], total), total)
    floor = peak * choice["min_lr_ratio"]
    assert all(rate >= floor * (1 - 1e-12) for rate in rates[rising:])


@given(settings, st.integers(2, 500))
def test_it_rises_then_never_rises_again(choice: dict, total: int) -> None:
    rates = [learning_rate(step, total, **choice) for step in range(1, total + 1)]
    top = max(min(warmup_steps(choice["warmup"], total), total), 1) - 1
    assert all(a < b for a, b in pairwise(rates[: top + 1]))
    assert all(a >= b * (1 - 1e-12) for a, b in pairwise(rates[top:]))


@given(settings, st.integers(2, 500))
def test_it_ends_at_the_minimum(choice: dict, total: int) -> None:
    if warmup_steps(choice["warmup"], total) >= total or choice["schedule"] == "constant":
        return
    last = learning_rate(total, total, **choice)
    assert last == pytest.approx(choice["peak_lr"] * choice["min_lr_ratio"], abs=1e-15)
    assert learning_rate(total + 7, total, **choice) == last, "past the end: the last value"


@given(settings, st.integers(50, 2000))
def test_continuity(choice: dict, total: int) -> None:
    """No step changes more than the steepest part of its curve: pi/2 of the straight line's slope."""
    rising = warmup_steps(choice["warmup"], total)
    falling = max(1, round(choice["decay"] * total)) if choice["schedule"] == "wsd" else total - max(rising, 1)
    falling = min(falling, total - max(rising, 1))
    if falling < 1:
        return
    steepest = choice["peak_lr"] * max(1 / max(rising, 1), 1.6 / falling)
    rates = [learning_rate(step, total, **choice) for step in range(1, total + 1)]
    assert max(abs(a - b) for a, b in pairwise(rates)) <= steepest * (1 + 1e-9)


def test_known_values() -> None:
    def rates(total: int, **choice: object) -> list[float]:
        return [round(learning_rate(s, total, peak_lr=1.0, **choice), 6) for s in range(1, total + 1)]  # type: ignore[arg-type]

    assert rates(5, schedule="linear") == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert rates(5, schedule="cosine", min_lr_ratio=0.5) == [1.0, 0.926777, 0.75, 0.573223, 0.5]
    assert rates(6, schedule="linear", warmup=2) == [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert rates(10, schedule="wsd", warmup=0.2, decay=0.3) == pytest.approx(
        [0.5, 1, 1, 1, 1, 1, 1, 2 / 3, 1 / 3, 0], abs=1e-6
    )
    assert rates(3, schedule="constant", warmup=0.34) == [0.5, 1.0, 1.0]
    assert rates(1, schedule="cosine") == [1.0], "a run of one step trains"
    assert rates(2, schedule="cosine", warmup=9) == [0.5, 1.0]


def test_a_fraction_of_warm_up_is_rounded_up_and_a_whole_number_is_steps() -> None:
    assert warmup_steps(0.03, 10) == 1
    assert warmup_steps(0.0, 10) == 0
    assert warmup_steps(1, 10) == 1


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate(0, 10, peak_lr=1, schedule="cosine")


def test_a_jobs_own_settings() -> None:
    train = job(train__schedule="linear", train__warmup=2, train__lr=0.5, train__min_lr_ratio=0.1).train
    assert lr_of(train, 2, 10) == 0.5
    assert lr_of(train, 10, 10) == pytest.approx(0.05)
