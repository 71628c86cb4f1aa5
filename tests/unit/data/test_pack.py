from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.data.pack import pack

SEQ_LEN = 64
LENGTHS = st.lists(st.integers(1, SEQ_LEN), max_size=200)


@given(LENGTHS)
def test_every_example_once_and_no_row_too_long(lengths: list[int]) -> None:
    rows = pack(lengths, SEQ_LEN)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in row) <= SEQ_LEN for row in rows)


@given(LENGTHS)
def test_rows_and_their_examples_are_in_order(lengths: list[int]) -> None:
    rows = pack(lengths, SEQ_LEN)
    assert rows == sorted(rows)
    assert all(row == sorted(row) for row in rows)


@given(LENGTHS)
def test_at_most_one_row_is_half_empty(lengths: list[int]) -> None:
    """A property of best fit: two rows that are both at most half full would have been one."""
    rows = pack(lengths, SEQ_LEN)
    assert sum(2 * sum(lengths[i] for i in row) <= SEQ_LEN for row in rows) <= 1


@given(LENGTHS)
def test_same_as_searching_every_row(lengths: list[int]) -> None:
    """The oracle: best-fit decreasing by looking at every row; as many rows, as full."""
    rows: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [r for r, used in enumerate(rows) if used + length <= SEQ_LEN]
        if fitting:
            rows[max(fitting, key=lambda r: rows[r])] += length
        else:
            rows.append(length)
    assert sorted(rows) == sorted(sum(lengths[i] for i in row) for row in pack(lengths, SEQ_LEN))


def test_without_packing_each_example_has_its_row() -> None:
    assert pack([3, 64, 1], SEQ_LEN, packing=False) == [[0], [1], [2]]


def test_nothing_packs_to_nothing() -> None:
    assert pack([], SEQ_LEN) == []


@pytest.mark.parametrize("length", [0, 65])
def test_what_cannot_fit_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="does not fit a row of 64"):
        pack([length], SEQ_LEN)


def test_a_hundred_thousand_examples_pack_in_seconds_and_fill_their_rows() -> None:
    rng = random.Random(0)
    lengths = [rng.randint(1, 1500) for _ in range(100_000)]
    start = time.perf_counter()
    rows = pack(lengths, 2048)
    assert time.perf_counter() - start < 5
    assert sum(lengths) / (len(rows) * 2048) > 0.99
