from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.preflight.busbw import ELEMENT_BYTES, Op, buffer_bytes, bus_bandwidth, legal_size
from warpbeam.preflight.sizes import (
    LARGEST,
    MEMORY_SHARE,
    QUICK_SIZES,
    SIZES,
    Room,
    fitting,
    predicted_s,
    repeats,
)

OPS = st.sampled_from(list(Op))
RANKS = st.integers(2, 2048)
BYTES = st.integers(1, LARGEST)


@pytest.mark.parametrize(
    ("op", "ranks", "times"),
    [
        (Op.ALL_REDUCE, 2, 1.0),
        (Op.ALL_REDUCE, 8, 1.75),
        (Op.ALL_GATHER, 8, 0.875),
        (Op.REDUCE_SCATTER, 4, 0.75),
        (Op.ALL_TO_ALL, 16, 0.9375),
    ],
)
def test_busbw_is_algbw_times_the_factor_of_nccl_tests(op: Op, ranks: int, times: float) -> None:
    assert bus_bandwidth(op, 10**9, 0.5, ranks) == pytest.approx(2e9 * times)


def test_a_line_of_nccl_tests_is_reproduced() -> None:
    """8 GiB all-reduce over 8 GPUs in 31 391 us: it prints algbw 273.6 and busbw 478.9 beside each other."""
    assert bus_bandwidth(Op.ALL_REDUCE, 8 << 30, 31391e-6, 8) / 1e9 == pytest.approx(478.9, rel=1e-3)


@given(OPS, BYTES, RANKS)
def test_a_size_is_cut_into_equal_whole_shares(op: Op, size: int, ranks: int) -> None:
    legal = legal_size(op, size, ranks)
    step = ELEMENT_BYTES * (ranks if op.shares else 1)
    assert legal % step == 0
    assert legal >= step
    assert legal <= max(size, step)
    assert legal_size(op, legal, ranks) == legal


@given(OPS, RANKS, st.lists(st.builds(Room, st.integers(0, 1 << 40), st.integers(1, 16)), min_size=1, max_size=5))
def test_no_node_ever_gives_more_than_its_share_of_free_memory(op: Op, ranks: int, rooms: list[Room]) -> None:
    sizes = fitting(op, SIZES, ranks, rooms)
    assert sizes == SIZES[: len(sizes)]
    for size in sizes:
        for room in rooms:
            held = room.ranks * buffer_bytes(op, legal_size(op, size, ranks), ranks)
            assert held <= MEMORY_SHARE * room.free_bytes
    if len(sizes) < len(SIZES):
        assert not all(room.holds(op, SIZES[len(sizes)], ranks) for room in rooms)


def test_sixteen_ranks_in_20_gib_stop_before_a_gibibyte() -> None:
    room = Room(20 << 30, 16)
    assert fitting(Op.ALL_REDUCE, SIZES, 16, [room])[-1] == 128 << 20
    assert fitting(Op.ALL_REDUCE, SIZES, 2, [Room(20 << 30, 2)])[-1] == LARGEST


def test_sizes_reach_from_eight_bytes_to_a_gibibyte() -> None:
    for sizes in (SIZES, QUICK_SIZES):
        assert (sizes[0], sizes[-1]) == (8, 1 << 30)
        assert list(sizes) == sorted(sizes)


@given(st.floats(1e-7, 1e3), st.floats(-10, 1e3))
def test_repeats_stay_within_the_time_that_is_left(once_s: float, left_s: float) -> None:
    count = repeats(once_s, left_s)
    assert 0 <= count <= 20
    if count > 1:
        assert (count + 1) * once_s <= left_s * 1.0001
    if count == 0:
        assert 2 * once_s > left_s


def test_large_sizes_are_foreseen_in_proportion() -> None:
    assert predicted_s(None, 0, 8) is None
    assert predicted_s(1e-4, 8, 64) == 2e-4
    assert predicted_s(0.5, 16 << 20, 128 << 20) == 4.0
