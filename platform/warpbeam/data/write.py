"""Writes parts and their seals: the last step of preparation, and a data set made by hand for tests and benchmarks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from warpbeam.data.examples import TaskStats
from warpbeam.data.files import SourceFile
from warpbeam.data.index import (
    INDEX,
    SOURCES,
    Index,
    Seal,
    Source,
    Sources,
    TaskRange,
    TaskTotals,
    add_stats,
    part_key,
    seal_key,
)
from warpbeam.data.pack import pack
from warpbeam.data.part import encode_part
from warpbeam.storage.store import ObjectStore

Example = tuple[NDArray[np.integer], NDArray[np.bool_]]
"""Token ids, and which of them carry loss."""


def write_part(
    store: ObjectStore,
    prefix: str,
    task: int,
    examples: Sequence[Example],
    records: Sequence[int],
    *,
    seq_len: int,
    packing: bool,
    stats: TaskStats,
) -> Seal:
    """Pack one task's examples, store the part, then seal it.

    Killed between the two, the part is written again with the same bytes. Sealed by somebody else meanwhile, that seal
    is the one that counts.

    Args:
        records: the line (row, piece) of each example's record within the task, from 1.
        stats: what became of the task's records.
    """
    rows = pack([len(ids) for ids, _ in examples], seq_len, packing=packing)
    part = encode_part(examples, rows, seq_len)
    lines = tuple(tuple(records[i] for i in row) for row in rows)
    seal = Seal(task, hashlib.sha256(part.data).hexdigest(), tuple(part.loss_tokens), lines, stats)
    store.put(part_key(prefix, task), part.data)
    if not store.put_if_absent(seal_key(prefix, task), seal.to_json()):
        seal = Seal.from_json(store.get(seal_key(prefix, task)))
    return seal


def write_index(
    store: ObjectStore, prefix: str, sources: Sources, tasks: Iterable[tuple[TaskTotals, TaskStats]]
) -> Index:
    """Close a data set whose tasks are all sealed.

    Args:
        tasks: of each task, in their order.
    """
    totals, stats = [], TaskStats()
    for task_totals, task_stats in tasks:
        totals.append(task_totals)
        add_stats(stats, task_stats)
    index = Index(sources.fingerprint, sources.seq_len, tuple(totals), stats)
    store.put(f"{prefix}/{INDEX}", index.to_json(sources.tasks))
    return index


def write_dataset(
    store: ObjectStore,
    prefix: str,
    tasks: Sequence[Sequence[Example]],
    *,
    seq_len: int,
    packing: bool = True,
    task_sources: Sequence[int] | None = None,
) -> Index:
    """A data set from arrays, without a tokenizer or Ray: one part for each list of examples.

    Args:
        task_sources: the source of each task; all of them source 0 when absent.
    """
    of_task = list(task_sources) if task_sources is not None else [0] * len(tasks)
    named = tuple(
        Source(name, "tokens", (SourceFile(name, 0, "", None, "parquet"),))
        for name in (f"arrays-{source}" for source in range(max(of_task, default=0) + 1))
    )
    ranges = tuple(TaskRange(source, 0, task, task + 1) for task, source in enumerate(of_task))
    sources = Sources("arrays", seq_len, named, ranges)
    store.put(f"{prefix}/{SOURCES}", sources.to_json())
    done = []
    for task, examples in enumerate(tasks):
        tokens, loss_tokens = sum(len(ids) for ids, _ in examples), sum(int(loss[1:].sum()) for _, loss in examples)
        count = len(examples)
        stats = TaskStats(lines=count, records=count, examples=count, tokens=tokens, loss_tokens=loss_tokens)
        lines = range(1, count + 1)
        seal = write_part(store, prefix, task, examples, lines, seq_len=seq_len, packing=packing, stats=stats)
        done.append((seal.totals, seal.stats))
    return write_index(store, prefix, sources, done)
