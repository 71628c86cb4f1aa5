from __future__ import annotations

import time
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpbeam.data.order import (
    MIXTURE_PERIOD,
    WINDOW_TASKS,
    Ints,
    Located,
    Mixture,
    RowOrder,
    Unsealed,
    epoch_tasks,
    permute,
    preparation_order,
    split_streams,
    subkey,
)
from warpbeam.errors import UserError

KEYS = st.integers(0, 2**64 - 1)


def row_ids(order: RowOrder, start: int, count: int) -> list[tuple[int, int]]:
    located = order.locate(np.arange(start, start + count, dtype=np.int64))
    return list(zip(located.task.tolist(), located.row.tolist(), strict=True))


def order_of(
    rows: list[int], *, seed: int = 0, sources: list[int] | None = None, weights: list[float | None] | None = None
) -> RowOrder:
    order = RowOrder(sources or [0] * len(rows), seed=seed, weights=weights)
    order.learn(np.arange(len(rows)), np.array(rows, np.int64))
    return order


@given(st.integers(1, 3000), KEYS)
def test_permute_is_a_bijection(n: int, key: int) -> None:
    assert sorted(permute(np.arange(n), n, key).tolist()) == list(range(n))


@given(st.integers(1, 2**40), KEYS, st.data())
@settings(max_examples=50)
def test_permute_seeks_in_any_domain(n: int, key: int, data: st.DataObject) -> None:
    index = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True)), np.int64)
    sent = permute(index, n, key)
    assert ((sent >= 0) & (sent < n)).all()
    assert len(set(sent.tolist())) == len(index)
    assert sent.tolist() == [int(permute(index[i : i + 1], n, key)[0]) for i in range(len(index))]


def test_permute_of_four_reaches_every_permutation_about_equally() -> None:
    tries = 4800
    seen = Counter(tuple(permute(np.arange(4), 4, subkey(0, "try", k)).tolist()) for k in range(tries))
    assert set(seen) == set(permutations(range(4)))
    expected = tries / 24
    chi_squared = sum((count - expected) ** 2 / expected for count in seen.values())
    assert chi_squared < 49.7  # 23 degrees of freedom: exceeded by a fair one once in a thousand


def test_permute_leaves_no_trace_of_the_order() -> None:
    n = 10_000
    sent = permute(np.arange(n), n, 5).astype(float)
    assert abs(np.corrcoef(np.arange(n), sent)[0, 1]) < 0.03
    assert abs(np.corrcoef(sent[:-1], sent[1:])[0, 1]) < 0.03


def test_the_order_is_frozen() -> None:
    """Runs resume by slot: if this changes, ORDER_VERSION must change with it."""
    assert permute(np.arange(10), 10, 42).tolist() == [0, 5, 1, 7, 6, 3, 4, 2, 8, 9]
    order = order_of([3, 0, 2, 4], seed=7, sources=[0, 0, 1, 1], weights=[2.0, 1.0])
    assert row_ids(order, 0, 9) == [(0, 1), (3, 0), (0, 0), (0, 2), (3, 3), (0, 2), (0, 1), (3, 2), (0, 0)]


@given(st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=12))
@settings(max_examples=50)
def test_mixture_counts_and_spreads_the_weights(weights: list[float]) -> None:
    mixture = Mixture(weights)
    shares = np.array(weights) / sum(weights)
    assert mixture.quota.sum() == MIXTURE_PERIOD
    assert (mixture.quota >= 1).all()
    assert (np.abs(mixture.quota - shares * MIXTURE_PERIOD) <= len(weights)).all()
    pattern = mixture.pattern
    for stream in range(len(weights)):
        counts = np.cumsum(pattern == stream)
        ideal = np.arange(1, MIXTURE_PERIOD + 1) * mixture.quota[stream] / MIXTURE_PERIOD
        assert np.abs(counts - ideal).max() <= len(weights) / 2 + 1


def test_mixture_positions_count_each_stream_without_gaps() -> None:
    mixture = Mixture([0.7, 0.2, 0.1])
    streams, positions = mixture.locate(np.arange(3 * MIXTURE_PERIOD, dtype=np.int64))
    for stream in range(3):
        mine = positions[streams == stream]
        assert mine.tolist() == list(range(len(mine)))


def test_too_many_weighted_sources_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="too many to mix"):
        Mixture([1.0] * (MIXTURE_PERIOD + 1))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=70).filter(any), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_every_epoch_holds_every_row_once(rows: list[int], seed: int) -> None:
    order = order_of(rows, seed=seed)
    total = sum(rows)
    everything = {(task, row) for task, count in enumerate(rows) for row in range(count)}
    for epoch in range(3):
        got = row_ids(order, epoch * total, total)
        assert len(got) == total
        assert set(got) == everything


def test_epochs_and_seeds_differ() -> None:
    rows = [50] * 40
    order = order_of(rows, seed=1)
    first, second = row_ids(order, 0, 2000), row_ids(order, 2000, 2000)
    assert first != second
    assert first != row_ids(order_of(rows, seed=2), 0, 2000)
    assert first == row_ids(order_of(rows, seed=1), 0, 2000)


@given(st.integers(0, 10**12), st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_seeking_equals_reading_through(start: int, count: int) -> None:
    order = order_of([5, 0, 17, 3, 9], seed=3, sources=[0, 0, 1, 1, 0], weights=[1.0, 0.3])
    assert row_ids(order, start, count) == [row_ids(order, start + i, 1)[0] for i in range(count)]


def test_rows_of_a_window_come_before_those_of_the_next() -> None:
    rows = [7] * (3 * WINDOW_TASKS)
    order = order_of(rows, seed=4)
    tasks = epoch_tasks(np.arange(len(rows)), 4, 0, 0)
    window_rows = 7 * WINDOW_TASKS
    for window in range(3):
        got = {task for task, _ in row_ids(order, window * window_rows, window_rows)}
        assert got == set(tasks[window * WINDOW_TASKS : (window + 1) * WINDOW_TASKS].tolist())


def test_a_weighted_source_begins_again_by_itself() -> None:
    """A small source with a large weight repeats; its epochs are its own."""
    order = order_of([2, 100], sources=[0, 1], weights=[1.0, 1.0])
    got = row_ids(order, 0, 80)
    small = [at for at in got if at[0] == 0]
    assert len(small) == 40
    assert all(set(small[i : i + 2]) == {(0, 0), (0, 1)} for i in range(0, 40, 2))


def test_weights_of_zero_and_sources_without_tasks_are_left_out() -> None:
    streams, weights = split_streams([0, 2, 2], [0.0, 1.0, None])
    assert [s.tolist() for s in streams] == [[1, 2]]
    assert weights == [1.0]
    with pytest.raises(UserError, match="no training source"):
        split_streams([0, 0], [0.0, 1.0])


def test_no_rows_at_all_is_a_clear_error() -> None:
    with pytest.raises(UserError, match="no rows"):
        row_ids(order_of([0, 0]), 0, 1)


@given(st.lists(st.integers(0, 5), min_size=20, max_size=60).filter(any), st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_what_is_known_early_is_what_will_be_true(rows: list[int], batch: int) -> None:
    """Rows located while tasks are unsealed are the complete data set's; only unsealed tasks are waited for."""
    sources = [i % 2 for i in range(len(rows))]
    weights: list[float | None] = [2.0, 1.0]
    rows = [max(rows[0], 1), max(rows[1], 1), *rows[2:]]
    complete = order_of(rows, seed=5, sources=sources, weights=weights)
    growing = RowOrder(sources, seed=5, weights=weights)
    unsealed = set(range(len(rows)))
    for start in range(0, 2 * sum(rows), batch):
        slots = np.arange(start, start + batch, dtype=np.int64)
        got, waited = locate_waiting(growing, slots, rows)
        assert waited <= unsealed
        unsealed -= waited
        want = complete.locate(slots)
        assert got.task.tolist() == want.task.tolist()
        assert got.row.tolist() == want.row.tolist()


def locate_waiting(order: RowOrder, slots: Ints, rows: list[int]) -> tuple[Located, set[int]]:
    """Seal whatever the order waits for; the rows, and the tasks that it waited for."""
    waited: set[int] = set()
    while True:
        try:
            return order.locate(slots), waited
        except Unsealed as unsealed:
            order.learn(unsealed.tasks, [rows[t] for t in unsealed.tasks])
            waited |= set(unsealed.tasks)


def test_preparation_order_is_the_order_in_which_windows_are_needed() -> None:
    sources = [0] * 40 + [1] * 40
    order = preparation_order(sources, [100] * 80, seed=6, weights=[3.0, 1.0])
    assert sorted(order) == list(range(80))
    streams, _ = split_streams(sources, [3.0, 1.0])
    first = [set(epoch_tasks(tasks, 6, s, 0)[:WINDOW_TASKS].tolist()) for s, tasks in enumerate(streams)]
    assert set(order[: 2 * WINDOW_TASKS]) == first[0] | first[1]
    assert all(sources[task] == 0 for task in order[2 * WINDOW_TASKS : 40])


def test_preparation_order_ends_with_the_tasks_that_no_stream_uses() -> None:
    assert preparation_order([0, 1, 1], [9, 9, 9], seed=0, weights=[1.0, 0.0]) == [0, 1, 2]


def test_step_ten_million_costs_what_step_ten_costs() -> None:
    """Over an index of 1e8 rows. Loose: the benchmark measures, this only notices a replay or an array of rows."""
    tasks = 200_000
    order = RowOrder([0] * tasks, seed=1)
    order.learn(np.arange(tasks), np.full(tasks, 512))

    def cost(step: int) -> float:
        start = time.perf_counter()
        order.locate(np.arange(step * 64, (step + 1) * 64, dtype=np.int64))
        return time.perf_counter() - start

    cost(0)
    assert cost(10_000_000) < 20 * cost(10) + 0.5
