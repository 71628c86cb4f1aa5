"""Which row is in which place of the training sequence: a pure, seekable function of (task sizes, weights, seed).

The sequence is infinite and nothing in it is stored: slot -> (stream, position) by a fixed mixture pattern, position ->
(epoch, window, row) by prefix sums and a keyed permutation. So step 10 million is found as fast as step 10, at any
world size, after any number of restarts, and before preparation has ended: epoch 0 of a window is known once its tasks
are sealed.

The permutation is a Feistel network over the next power of two, walked until it falls inside (Black and Rogaway,
"Ciphers with Arbitrary Finite Domains", 2002): a bijection of [0, n) in O(1) memory.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpbeam.errors import UserError

Ints = NDArray[np.int64]

WINDOW_TASKS = 16
"""Tasks whose rows are shuffled together: what a node holds on disk at once, and what must be sealed before a row is
known."""

MIXTURE_PERIOD = 4096
"""Slots after which the mixture repeats: a weight is kept to 1/4096."""

ORDER_VERSION = 1
"""In every key: a change of this module's arithmetic must change it, since runs resume by slot."""

_ROUNDS = 6  # even, see _feistel
_TABLES_KEPT = 8


def subkey(seed: int, *path: object) -> int:
    """A 64-bit key for one use (an epoch's tasks, a window's rows), independent of every other."""
    text = "/".join(["warpbeam-order", str(ORDER_VERSION), str(seed), *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def permute(index: Ints, n: int, key: int) -> Ints:
    """Where a keyed permutation of [0, n) sends each of `index`, without building it."""
    bits = max(2, (n - 1).bit_length())
    left_bits, right_bits = bits // 2, bits - bits // 2
    round_keys = [np.uint64(subkey(key, "round", r)) for r in range(_ROUNDS)]
    out = index.astype(np.uint64)
    outside = np.arange(out.size)
    while outside.size:
        walked = _feistel(out[outside], left_bits, right_bits, round_keys)
        out[outside] = walked
        outside = outside[walked >= np.uint64(n)]
    return out.astype(np.int64)


def _feistel(
    x: NDArray[np.uint64], left_bits: int, right_bits: int, round_keys: Sequence[np.uint64]
) -> NDArray[np.uint64]:
    """One pass over halves that may differ by a bit: their widths swap each round, so an even number restores them."""
    shift, low = np.uint64(right_bits), np.uint64((1 << right_bits) - 1)
    masks = [np.uint64((1 << left_bits) - 1), low]
    left, right = x >> shift, x & low
    for r, round_key in enumerate(round_keys):
        left, right = right, left ^ (_mix(right ^ round_key) & masks[r % 2])
    return (left << shift) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Mixture:
    """Takes each slot's stream by a fixed, evenly spread pattern of the weights."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.quota: Ints = _quotas(weights)
        at = np.concatenate([(np.arange(q) + 0.5) / q for q in self.quota])
        stream = np.repeat(np.arange(len(weights)), self.quota)
        # Occurrence k of a stream with quota q wants the place (k + 1/2)/q of the period; ties go to the earlier
        # stream.
        self.pattern: Ints = stream[np.lexsort((stream, at))]
        self._before = np.empty(MIXTURE_PERIOD, np.int64)
        for s, quota in enumerate(self.quota):
            self._before[self.pattern == s] = np.arange(quota)

    def locate(self, slots: Ints) -> tuple[Ints, Ints]:
        """(stream, position within that stream) of each slot."""
        period, place = np.divmod(slots, MIXTURE_PERIOD)
        stream = self.pattern[place]
        return stream, period * self.quota[stream] + self._before[place]


def _quotas(weights: Sequence[float]) -> Ints:
    """Slots of each stream in one period: largest remainders, at least one each."""
    if len(weights) > MIXTURE_PERIOD:
        raise UserError(
            f"{len(weights)} weighted sources are too many to mix",
            why=f"at most {MIXTURE_PERIOD} sources can have weights",
            fix="join sources with a pattern (`*.jsonl`), or leave the weights out",
            reason="too_many_sources",
        )
    ideal = np.asarray(weights, np.float64) / np.sum(weights) * MIXTURE_PERIOD
    quota: Ints = np.maximum(np.floor(ideal).astype(np.int64), 1)
    rest = MIXTURE_PERIOD - int(quota.sum())
    if rest > 0:
        quota[np.argsort(quota - ideal, kind="stable")[:rest]] += 1
    for _ in range(-rest):
        quota[np.argmax(quota)] -= 1
    return quota


class Place(NamedTuple):
    """One window of one stream in one epoch."""

    stream: int
    epoch: int
    window: int


class Unsealed(Exception):
    """The slots asked for lie in a window whose tasks are not all sealed."""

    def __init__(self, tasks: list[int]) -> None:
        super().__init__(f"tasks {tasks} are not sealed yet")
        self.tasks = tasks


@dataclass(frozen=True)
class Located:
    """Rows of some slots, in their order, and the windows that they came from."""

    task: Ints
    row: Ints
    places: tuple[Place, ...]


@dataclass(frozen=True)
class _EpochTable:
    """One stream's tasks in one epoch's order, with the first row of each task of the known windows (and the end)."""

    tasks: Ints
    starts: Ints

    def window_starts(self) -> Ints:
        return self.starts[::WINDOW_TASKS]


class RowOrder:
    """The infinite sequence of rows of one data set, for one seed and one set of weights.

    Row counts are told by `learn` as tasks become sealed; `locate` raises `Unsealed` for what cannot be known yet.
    Without weights all sources are one stream; with weights each source is a stream and a missing weight counts 1.
    """

    def __init__(
        self, task_sources: Sequence[int], *, seed: int, weights: Sequence[float | None] | None = None
    ) -> None:
        self.seed = seed
        self._streams, stream_weights = split_streams(task_sources, weights)
        self._mixture = Mixture(stream_weights)
        self._rows: Ints = np.zeros(len(task_sources), np.int64)
        self._known = np.zeros(len(task_sources), np.bool_)
        self._totals: dict[int, int | None] = {}
        self._tables: OrderedDict[tuple[int, int], _EpochTable] = OrderedDict()

    def learn(self, tasks: Sequence[int] | Ints, rows: Sequence[int] | Ints) -> None:
        """These tasks are sealed, with so many rows each."""
        self._rows[tasks] = rows
        self._known[tasks] = True
        self._totals.clear()
        self._tables.clear()

    def locate(self, slots: Ints) -> Located:
        """The row in each slot.

        Raises:
            Unsealed: with the tasks of the next window to wait for.
        """
        task, row = np.empty_like(slots), np.empty_like(slots)
        places: list[Place] = []
        streams, positions = self._mixture.locate(slots)
        for stream in np.unique(streams).tolist():
            mine = np.flatnonzero(streams == stream)
            epochs, offsets = self._epochs(stream, positions[mine])
            for epoch in np.unique(epochs).tolist():
                here = epochs == epoch
                at = mine[here]
                task[at], row[at], windows = self._locate_in_epoch(stream, epoch, offsets[here])
                places += [Place(stream, epoch, w) for w in windows]
        return Located(task, row, tuple(places))

    def window_tasks(self, place: Place) -> list[int]:
        """The tasks of a window, in order; past an epoch's end, those of the next epoch's first window."""
        tasks = self._table(place.stream, place.epoch).tasks
        window = tasks[place.window * WINDOW_TASKS : (place.window + 1) * WINDOW_TASKS]
        if not window.size:
            window = self._table(place.stream, place.epoch + 1).tasks[:WINDOW_TASKS]
        return window.tolist()  # type: ignore[no-any-return]

    def _epochs(self, stream: int, positions: Ints) -> tuple[Ints, Ints]:
        """(epoch, row within the epoch's order) of positions of a stream."""
        total = self._total(stream)
        if total is None:
            table = self._table(stream, 0)
            if positions.max() >= table.starts[-1]:
                first = len(table.starts) - 1
                waiting = table.tasks[first : first + WINDOW_TASKS]
                raise Unsealed(waiting[~self._known[waiting]].tolist())
            return np.zeros_like(positions), positions
        if total == 0:
            raise UserError("a source of the training data has no rows", reason="no_rows")
        return np.divmod(positions, total)

    def _total(self, stream: int) -> int | None:
        """Rows of a stream's epoch; None while they are still being counted."""
        if stream not in self._totals:
            tasks = self._streams[stream]
            self._totals[stream] = int(self._rows[tasks].sum()) if self._known[tasks].all() else None
        return self._totals[stream]

    def _locate_in_epoch(self, stream: int, epoch: int, offsets: Ints) -> tuple[Ints, Ints, list[int]]:
        table = self._table(stream, epoch)
        window_starts = table.window_starts()
        # side="right" steps over tasks and windows without rows.
        windows = np.searchsorted(window_starts, offsets, side="right") - 1
        shuffled = np.empty_like(offsets)
        touched = np.unique(windows).tolist()
        for window in touched:
            here = windows == window
            start = window_starts[window]
            end = window_starts[window + 1] if window + 1 < len(window_starts) else table.starts[-1]
            key = subkey(self.seed, "rows", stream, epoch, window)
            shuffled[here] = start + permute(offsets[here] - start, int(end - start), key)
        place = np.searchsorted(table.starts, shuffled, side="right") - 1
        return table.tasks[place], shuffled - table.starts[place], touched

    def _table(self, stream: int, epoch: int) -> _EpochTable:
        table = self._tables.get((stream, epoch))
        if table is None:
            tasks = epoch_tasks(self._streams[stream], self.seed, stream, epoch)
            unknown = np.flatnonzero(~self._known[tasks])
            # Only whole windows count: a window's permutation needs the rows of all of its tasks.
            known = int(unknown[0]) // WINDOW_TASKS * WINDOW_TASKS if unknown.size else len(tasks)
            starts = np.concatenate([[0], np.cumsum(self._rows[tasks[:known]])]).astype(np.int64)
            table = self._tables[stream, epoch] = _EpochTable(tasks, starts)
            while len(self._tables) > _TABLES_KEPT:
                self._tables.popitem(last=False)
        return table


def split_streams(
    task_sources: Sequence[int], weights: Sequence[float | None] | None
) -> tuple[list[Ints], list[float]]:
    """Task ids of each stream, and the streams' weights. Sources without tasks or with weight 0 are left out."""
    sources = np.asarray(task_sources, np.int64)
    if weights is None or all(w is None for w in weights):
        return [np.arange(len(sources), dtype=np.int64)], [1.0]
    given = [1.0 if w is None else float(w) for w in weights]
    streams = [np.flatnonzero(sources == s) for s in range(len(given))]
    used = [s for s, w in enumerate(given) if w > 0 and streams[s].size]
    if not used:
        raise UserError("no training source with a weight above 0 has data", reason="no_rows")
    return [streams[s] for s in used], [given[s] for s in used]


def epoch_tasks(tasks: Ints, seed: int, stream: int, epoch: int) -> Ints:
    """A stream's tasks in the order of one epoch."""
    return tasks[permute(np.arange(len(tasks), dtype=np.int64), len(tasks), subkey(seed, "tasks", stream, epoch))]


def preparation_order(
    task_sources: Sequence[int],
    task_bytes: Sequence[int],
    *,
    seed: int,
    weights: Sequence[float | None] | None = None,
) -> list[int]:
    """All tasks, in the order in which epoch 0 will need their windows.

    Rows are not known yet, so the bytes before a window over its stream's weight say when it is needed. Tasks that no
    stream uses (weight 0) come last: the parts do not depend on the weights.
    """
    sizes = np.asarray(task_bytes, np.float64)
    streams, stream_weights = split_streams(task_sources, weights)
    keyed: list[tuple[float, int, Ints]] = []
    for stream, (tasks, weight) in enumerate(zip(streams, stream_weights, strict=True)):
        order = epoch_tasks(tasks, seed, stream, 0)
        before = np.concatenate([[0.0], np.cumsum(sizes[order])])
        keyed += [
            (before[first] / weight, stream, order[first : first + WINDOW_TASKS])
            for first in range(0, len(order), WINDOW_TASKS)
        ]
    keyed.sort(key=lambda window: window[:2])
    ordered = [task for _, _, window in keyed for task in window.tolist()]
    return ordered + sorted(set(range(len(task_sources))) - set(ordered))
