"""A prepared data set as its readers see it: complete, or still growing while training has begun.

Row counts come from the index once it exists, else from the seals of the tasks asked for. Waiting for a seal ends in
one of three ways: it appears, preparation says why it gave up (its own error is raised here), or nothing happens for
too long.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpbeam.data.index import (
    INDEX,
    SOURCES,
    Index,
    Seal,
    Sources,
    TaskTotals,
    part_key,
    preparation_error,
    read_or_none,
    seal_key,
)
from warpbeam.data.order import Ints
from warpbeam.data.part import stride
from warpbeam.data.part_cache import PartCache
from warpbeam.errors import InfraError, UserError
from warpbeam.storage.store import ObjectStore

PAD = "pad"
"""The sample id of a row of padding alone."""

_SEALS_KEPT = 4096
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


@dataclass(frozen=True)
class Waiting:
    """How to wait for data that is not prepared yet.

    Args:
        pause: sleeps so many seconds; may raise to end the waiting.
        deadline_s: give up when nothing new was sealed for so long.
        on_wait: called before each pause with a sentence for the heartbeat.
    """

    pause: Callable[[float], object] = time.sleep
    deadline_s: float = 1800.0
    on_wait: Callable[[str], None] | None = None


@dataclass(frozen=True)
class TaskInfo:
    """What a reader needs of a seal."""

    sha256: str
    loss_tokens: NDArray[np.int64]
    """Of each row."""

    @property
    def rows(self) -> int:
        return len(self.loss_tokens)


class Dataset:
    """One data prefix. Made by `open_dataset`; safe to share between threads."""

    def __init__(self, store: ObjectStore, prefix: str, sources: Sources, index: Index | None) -> None:
        self.store = store
        self.prefix = prefix
        self.sources = sources
        self._index = index
        self._infos: OrderedDict[int, TaskInfo] = OrderedDict()
        self._infos_lock = threading.Lock()

    @property
    def seq_len(self) -> int:
        return self.sources.seq_len

    @property
    def task_sources(self) -> list[int]:
        """The source of each task."""
        return [task.source for task in self.sources.tasks]

    @property
    def complete(self) -> bool:
        """Whether preparation has ended, as far as seen."""
        return self._index is not None

    @property
    def index(self) -> Index:
        """Counts and statistics of the complete data set."""
        if self._index is None and not self._refresh():
            raise UserError(
                f"{self.store.uri}/{self.prefix} is still being prepared",
                fix="wait for it, or go on with it: warpbeam data prepare JOB",
                reason="not_prepared",
            )
        assert self._index is not None
        return self._index

    @property
    def total_rows(self) -> int:
        return self.index.total_rows

    def total_steps(self, epochs: float, global_batch: int) -> int:
        """Optimizer steps that see `epochs` times as many rows as there are."""
        return math.ceil(round(epochs * self.total_rows, 6) / global_batch)

    def info(self, task: int) -> TaskInfo:
        """Digest and loss tokens of a sealed task."""
        known = self._info_if_sealed(task)
        if known is None:
            raise InfraError(
                f"{seal_key(self.prefix, task)} has gone from {self.store.uri}",
                why="the data set was complete, or this task was seen sealed",
                fix="prepare the data again: warpbeam data prepare JOB",
                reason="seal_missing",
            )
        return known

    def wait_sealed(self, tasks: Sequence[int], waiting: Waiting) -> list[int]:
        """Rows of each task, once all of them are sealed.

        Raises:
            WarpbeamError: preparation's own, when it gave up; InfraError when nothing happened for too long.
        """
        missing = list(tasks)

        def poll() -> tuple[bool, int]:
            missing[:] = [task for task in missing if self._info_if_sealed(task) is None]
            return not missing, len(missing)

        if not self._refresh():
            self._wait(poll, waiting, f"the next {len(tasks)} parts of the training data")
        if self._index is not None:
            return [self._index.tasks[task].rows for task in tasks]
        return [self.info(task).rows for task in tasks]

    def wait_complete(self, waiting: Waiting) -> Index:
        """The index, once preparation has ended."""

        def poll() -> tuple[bool, int]:
            if self._refresh():
                return True, 0
            return False, sum(1 for _ in self.store.list(f"{self.prefix}/part-"))

        self._wait(poll, waiting, "preparation to end")
        return self.index

    def describe(self, sample_id: str) -> list[tuple[str, int]]:
        """The records that a row was made of: file, and line (jsonl), row (parquet) or piece (txt) in it, from 1."""
        if sample_id == PAD:
            return []
        task, row = parse_sample_id(sample_id)
        seal = Seal.from_json(self.store.get(seal_key(self.prefix, task)))
        file = self.sources.file_of(task)
        before = sum(lines for _, _, lines in self._tasks_before(task))
        return [(file.uri, before + line) for line in seal.records[row]]

    def _tasks_before(self, task: int) -> list[TaskTotals]:
        """Of the same file: tasks are numbered in the order of their files and ranges."""
        at = self.sources.tasks[task]
        first = task
        while first and self.sources.tasks[first - 1][:2] == at[:2]:
            first -= 1
        return list(self.index.tasks[first:task])

    def sample_ids(self, tasks: Ints, rows: Ints) -> list[str]:
        ids = zip(tasks.tolist(), rows.tolist(), strict=True)
        return [f"s{self.sources.tasks[task].source}/{task:06d}:{row}" for task, row in ids]

    def loss_tokens(self, tasks: Ints, rows: Ints) -> int:
        """Loss tokens of these rows together."""
        return sum(int(self.info(task).loss_tokens[rows[tasks == task]].sum()) for task in np.unique(tasks).tolist())

    def read_rows(self, tasks: Ints, rows: Ints, cache: PartCache) -> NDArray[np.uint8]:
        """The bytes of these rows, uint8 [rows, stride]."""
        width = stride(self.seq_len)
        block = np.empty((len(tasks), width), np.uint8)
        for task in np.unique(tasks).tolist():
            part = cache.open(part_key(self.prefix, task), self.info(task).sha256)
            here = tasks == task
            block[here] = part.reshape(-1, width)[rows[here]]
        return block

    def fetch_part(self, task: int, cache: PartCache) -> None:
        """Bring a task that is sealed to this node's disk."""
        info = self._info_if_sealed(task)
        if info is not None and info.rows:
            cache.fetch(part_key(self.prefix, task), info.sha256)

    def _info_if_sealed(self, task: int) -> TaskInfo | None:
        with self._infos_lock:
            if task in self._infos:
                self._infos.move_to_end(task)
                return self._infos[task]
        data = read_or_none(self.store, seal_key(self.prefix, task))
        if data is None:
            return None
        seal = Seal.from_json(data)
        info = TaskInfo(seal.sha256, np.array(seal.loss_tokens, np.int64))
        with self._infos_lock:
            self._infos[task] = info
            while len(self._infos) > _SEALS_KEPT:
                self._infos.popitem(last=False)
        return info

    def _refresh(self) -> bool:
        if self._index is None:
            data = read_or_none(self.store, f"{self.prefix}/{INDEX}")
            self._index = Index.from_json(data) if data is not None else None
        return self._index is not None

    def _wait(self, poll: Callable[[], tuple[bool, int]], waiting: Waiting, what: str) -> None:
        """Poll (done, progress) with growing pauses until done."""
        pause_s, quiet_s, seen = _FIRST_PAUSE_S, 0.0, None
        while True:
            done, progress = poll()
            if done:
                return
            failed = preparation_error(self.store, self.prefix)
            if failed is not None:
                raise failed
            if progress != seen:
                seen, quiet_s, pause_s = progress, 0.0, _FIRST_PAUSE_S
            if quiet_s >= waiting.deadline_s:
                raise InfraError(
                    f"waited {quiet_s:.0f} s for {what}, and nothing new was prepared",
                    why=f"no new part appeared in {self.store.uri}/{self.prefix}",
                    fix="see whether the process that prepares is alive; the same command again goes on with it",
                    reason="preparation_stalled",
                )
            if waiting.on_wait is not None:
                waiting.on_wait(f"waiting for {what} ({quiet_s:.0f} s)")
            waiting.pause(pause_s)
            quiet_s += pause_s
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def open_dataset(store: ObjectStore, prefix: str) -> Dataset:
    """The data set under a prefix, whether complete or growing."""
    sources = read_or_none(store, f"{prefix}/{SOURCES}")
    if sources is None:
        raise UserError(
            f"there is no prepared data under {store.uri}/{prefix}",
            fix="prepare it: warpbeam data prepare JOB",
            reason="not_prepared",
        )
    index = read_or_none(store, f"{prefix}/{INDEX}")
    return Dataset(store, prefix, Sources.from_json(sources), Index.from_json(index) if index is not None else None)


def parse_sample_id(sample_id: str) -> tuple[int, int]:
    """(task, row) of `s<source>/<task>:<row>`."""
    place, _, row = sample_id.rpartition(":")
    task = place.rpartition("/")[2]
    if not (task.isdigit() and row.isdigit()):
        raise UserError(f"{sample_id!r} is not a sample id", fix="write it as s0/000012:34", reason="bad_sample_id")
    return int(task), int(row)
