"""Feeds a rank its micro-batches by index: the same under Ray, torchrun and in a test, with neither Ray nor torch.

Global step k is slots [k*B, (k+1)*B) of the order, whatever the world. A rank takes its share of them, padded with rows
that weigh nothing where the batch does not divide. A thread decodes ahead; others fetch this window's and the next
one's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from warpbeam.data.dataset import PAD, Dataset, Waiting
from warpbeam.data.order import Ints, Located, Place, RowOrder, Unsealed
from warpbeam.data.part import blank_rows, decode_rows, stride
from warpbeam.data.part_cache import DEFAULT_LIMIT_BYTES, PartCache
from warpbeam.data.prefetch import Prefetch

DEFAULT_DEPTH = 8
"""Micro-batches decoded ahead."""
_FETCH_THREADS = 4


class MicroBatch(TypedDict):
    """Rows of one forward pass. Arrays are [micro_batch, seq_len], contiguous and writable."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    segment_ids: NDArray[np.int32]
    sample_ids: list[str]
    step: int
    last: bool
    """It ends the accumulation of its step."""
    global_loss_tokens: int
    """Of the whole global batch, over all ranks and micro-batches."""


@dataclass(frozen=True)
class Share:
    """Which rows of a global batch are one rank's: per = accumulation * micro_batch rows from rank * per on."""

    global_batch: int
    rank: int
    world: int
    micro_batch: int
    accumulation: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} is not in a world of {self.world}")
        if self.world * self.rows < self.global_batch:
            raise ValueError(
                f"{self.world} ranks x {self.accumulation} x {self.micro_batch} rows do not hold {self.global_batch}"
            )

    @property
    def rows(self) -> int:
        return self.accumulation * self.micro_batch

    def mine(self) -> slice:
        start = min(self.rank * self.rows, self.global_batch)
        return slice(start, min(start + self.rows, self.global_batch))


class BatchOrder:
    """The rows of each global step, waiting where they are not prepared yet."""

    def __init__(
        self, dataset: Dataset, *, seed: int, weights: Sequence[float | None] | None, global_batch: int
    ) -> None:
        self._dataset = dataset
        self._global_batch = global_batch
        self._order = RowOrder(dataset.task_sources, seed=seed, weights=weights)
        self._learnt_all = False

    def locate(self, step: int, waiting: Waiting) -> Located:
        slots = np.arange(step * self._global_batch, (step + 1) * self._global_batch, dtype=np.int64)
        while True:
            self._learn_all_when_complete()
            try:
                return self._order.locate(slots)
            except Unsealed as unsealed:
                self._order.learn(unsealed.tasks, self._dataset.wait_sealed(unsealed.tasks, waiting))

    def tasks_from(self, place: Place) -> list[int]:
        """The tasks of this window and the next."""
        return self._order.window_tasks(place) + self._order.window_tasks(place._replace(window=place.window + 1))

    def _learn_all_when_complete(self) -> None:
        if self._dataset.complete and not self._learnt_all:
            rows = self._dataset.index.rows
            self._order.learn(np.arange(len(rows)), np.array(rows, np.int64))
            self._learnt_all = True


def batch_ids(
    dataset: Dataset,
    step: int,
    *,
    seed: int,
    global_batch: int,
    weights: Sequence[float | None] | None = None,
    waiting: Waiting | None = None,
) -> list[str]:
    """The sample ids of a global batch, without training (step counts from 0)."""
    order = BatchOrder(dataset, seed=seed, weights=weights, global_batch=global_batch)
    located = order.locate(step, waiting or Waiting())
    return dataset.sample_ids(located.task, located.row)


class BatchReader:
    """One rank's micro-batches of a training run, from `start_step` on, without end unless `end_step` is given.

    Args:
        weights: of the job's sources, None for those that have none; without any, all sources are one.
        cache_dir: a folder on this node's disk, shared by its ranks.
        on_wait: called with a sentence while preparation is behind.
    """

    def __init__(
        self,
        dataset: Dataset,
        seed: int,
        global_batch: int,
        rank: int,
        world: int,
        micro_batch: int,
        accumulation: int,
        start_step: int,
        cache_dir: Path,
        *,
        end_step: int | None = None,
        weights: Sequence[float | None] | None = None,
        depth: int = DEFAULT_DEPTH,
        wait_deadline_s: float = Waiting.deadline_s,
        on_wait: Callable[[str], None] | None = None,
        cache_limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> None:
        self._dataset = dataset
        self._share = Share(global_batch, rank, world, micro_batch, accumulation)
        self._steps = (start_step, end_step)
        self._order = BatchOrder(dataset, seed=seed, weights=weights, global_batch=global_batch)
        self._cache = PartCache(dataset.store, cache_dir, limit_bytes=cache_limit_bytes)
        self._waiting = Waiting(deadline_s=wait_deadline_s, on_wait=on_wait)
        self._places: set[Place] = set()
        self._fetchers = ThreadPoolExecutor(_FETCH_THREADS, "warpbeam-fetch")
        self._prefetch: Prefetch[MicroBatch] = Prefetch(self._produce, depth)

    def __iter__(self) -> Iterator[MicroBatch]:
        return self._prefetch

    def __next__(self) -> MicroBatch:
        return next(self._prefetch)

    def close(self) -> None:
        """End and join the threads."""
        self._prefetch.close()
        self._fetchers.shutdown(cancel_futures=True)

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _produce(self, pause: Callable[[float], None]) -> Iterator[MicroBatch]:
        waiting = replace(self._waiting, pause=pause)
        step, end = self._steps
        while end is None or step < end:
            located = self._order.locate(step, waiting)
            self._fetch_ahead(located.places)
            mine = self._share.mine()
            loss_tokens = self._dataset.loss_tokens(located.task, located.row)
            block = self._dataset.read_rows(located.task[mine], located.row[mine], self._cache)
            ids = self._dataset.sample_ids(located.task[mine], located.row[mine])
            yield from micro_batches(block, ids, self._share, self._dataset.seq_len, step, loss_tokens)
            step += 1

    def _fetch_ahead(self, places: tuple[Place, ...]) -> None:
        """Have new windows' parts fetched; what fails here fails again, and is told, when its rows are read."""
        for place in set(places) - self._places:
            for task in self._order.tasks_from(place):
                self._fetchers.submit(self._dataset.fetch_part, task, self._cache)
        self._places = set(places)


class EvalReader:
    """One rank's micro-batches of a whole data set once, in its own order; every rank gets as many.

    The last ones are padded with rows that weigh nothing, so sums over all ranks are the same at any world.
    `global_loss_tokens` is the whole data set's.
    """

    def __init__(
        self,
        dataset: Dataset,
        rank: int,
        world: int,
        micro_batch: int,
        cache_dir: Path,
        *,
        depth: int = DEFAULT_DEPTH,
        waiting: Waiting | None = None,
        cache_limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> None:
        self._dataset = dataset
        self._index = dataset.wait_complete(waiting or Waiting())
        self._starts: Ints = np.concatenate([[0], np.cumsum(self._index.rows)]).astype(np.int64)
        self._rank, self._world, self._micro_batch = rank, world, micro_batch
        self._cache = PartCache(dataset.store, cache_dir, limit_bytes=cache_limit_bytes)
        self._prefetch: Prefetch[MicroBatch] = Prefetch(self._produce, depth)

    def __len__(self) -> int:
        """Micro-batches of each rank."""
        return -(-self._index.total_rows // (self._world * self._micro_batch))

    def __iter__(self) -> Iterator[MicroBatch]:
        return self._prefetch

    def __next__(self) -> MicroBatch:
        return next(self._prefetch)

    def close(self) -> None:
        self._prefetch.close()

    def __enter__(self) -> EvalReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _produce(self, pause: Callable[[float], None]) -> Iterator[MicroBatch]:
        total, width = self._index.total_rows, self._world * self._micro_batch
        loss_tokens = self._index.total_loss_tokens
        for step in range(len(self)):
            first = step * width
            share = Share(min(width, total - first), self._rank, self._world, self._micro_batch, 1)
            mine = share.mine()
            slots = np.arange(first + mine.start, first + mine.stop, dtype=np.int64)
            tasks = np.searchsorted(self._starts, slots, side="right") - 1
            rows = slots - self._starts[tasks]
            block = self._dataset.read_rows(tasks, rows, self._cache)
            ids = self._dataset.sample_ids(tasks, rows)
            for batch in micro_batches(block, ids, share, self._dataset.seq_len, step, loss_tokens):
                yield {**batch, "last": step == len(self) - 1}


def micro_batches(
    block: NDArray[np.uint8], ids: list[str], share: Share, seq_len: int, step: int, global_loss_tokens: int
) -> Iterator[MicroBatch]:
    """Cut a rank's rows of one step into micro-batches, filling up with rows of padding."""
    padding = share.rows - len(block)
    if padding:
        block = np.concatenate([block.reshape(-1, stride(seq_len)), blank_rows(padding, seq_len)])
        ids = ids + [PAD] * padding
    for start in range(0, share.rows, share.micro_batch):
        end = start + share.micro_batch
        rows = decode_rows(block[start:end], seq_len)
        yield MicroBatch(
            input_ids=rows.input_ids,
            labels=rows.labels,
            position_ids=rows.position_ids,
            segment_ids=rows.segment_ids,
            sample_ids=ids[start:end],
            step=step,
            last=end == share.rows,
            global_loss_tokens=global_loss_tokens,
        )
