from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.storage.bandwidth import Bandwidth, wait_turn


class Clock:
    """Stands still until it is told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_first_goes_at_once_and_the_next_when_its_bytes_have_had_their_time() -> None:
    clock = Clock()
    limit = Bandwidth(10, clock=clock)
    assert limit.reserve(50) == 0
    assert limit.reserve(20) == 5
    clock.now += 6
    assert limit.reserve(1) == pytest.approx(1)


def test_time_without_an_upload_is_not_saved_up() -> None:
    clock = Clock()
    limit = Bandwidth(10, clock=clock)
    limit.reserve(50)
    clock.now += 1000
    assert limit.reserve(50) == 0
    assert limit.reserve(50) == 5


@given(
    rate=st.floats(1, 1e12),
    turns=st.lists(st.tuples(st.integers(1, 64 << 20), st.floats(0, 100)), min_size=2, max_size=50),
)
def test_no_window_holds_more_than_the_cap_and_one_turn(rate: float, turns: list[tuple[int, float]]) -> None:
    clock = Clock()
    limit = Bandwidth(rate, clock=clock)
    sent: list[tuple[float, int]] = []
    for size, pause in turns:
        clock.now += pause
        sent.append((clock.now + limit.reserve(size), size))
    for first in range(len(sent)):
        for last in range(first + 1, len(sent)):
            between = sum(size for _, size in sent[first:last])
            allowed = rate * (sent[last][0] - sent[first][0])
            assert between <= allowed * (1 + 1e-6) + rate * 1e-6


@pytest.mark.parametrize("bytes_per_s", [0, -1, float("nan")])
def test_a_cap_is_a_speed(bytes_per_s: float) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        Bandwidth(bytes_per_s)


def test_whoever_has_given_up_waits_for_no_turn() -> None:
    given_up = threading.Event()
    assert wait_turn(1, None, given_up)
    assert wait_turn(1, None, None)
    given_up.set()
    limit = Bandwidth(1e-9)
    assert not wait_turn(1, limit, given_up)
    assert not wait_turn(1, limit, given_up), "a turn that is years away"
