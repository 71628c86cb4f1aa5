"""Writes parts, their seals and the index: the end of preparation, or a data set by hand for tests and benchmarks.

A part is built in a file, packed in stretches of a fixed number of tokens, so that a task that cannot be cut (a large
compressed file, a large row group) takes bounded memory too.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from warpbeam.data.examples import Example
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
from warpbeam.data.stats import TaskStats
from warpbeam.storage.disk import disk_errors
from warpbeam.storage.store import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterator

STRETCH_TOKENS = 8 << 20
"""Tokens packed together. Part of what a data set is: another number makes other rows."""


@dataclass
class BuiltPart:
    """What a seal will say of a part's rows."""

    sha256: str = ""
    loss_tokens: list[int] = field(default_factory=list)
    records: list[tuple[int, ...]] = field(default_factory=list)


def build_part(examples: Iterable[Example], file: BinaryIO, *, seq_len: int, packing: bool) -> BuiltPart:
    """Pack one task's examples and write its rows to a file."""
    built, digest = BuiltPart(), hashlib.sha256()

    def flush(stretch: list[Example]) -> None:
        rows = pack([len(example.ids) for example in stretch], seq_len, packing=packing)
        part = encode_part([(example.ids, example.loss) for example in stretch], rows, seq_len)
        built.loss_tokens += part.loss_tokens
        built.records += [tuple(stretch[i].task_line for i in row) for row in rows]
        digest.update(part.data)
        file.write(part.data)

    stretch: list[Example] = []
    tokens = 0
    for example in examples:
        stretch.append(example)
        tokens += len(example.ids)
        if tokens >= STRETCH_TOKENS:
            flush(stretch)
            stretch, tokens = [], 0
    flush(stretch)
    file.flush()
    built.sha256 = digest.hexdigest()
    return built


def store_part(store: ObjectStore, prefix: str, task: int, path: Path, built: BuiltPart, stats: TaskStats) -> Seal:
    """Store a part, then seal it.

    Killed between the two, the part is written again with the same bytes. Sealed by somebody else meanwhile, that seal
    is the one that counts.
    """
    seal = Seal(task, built.sha256, tuple(built.loss_tokens), tuple(built.records), stats)
    store.upload(path, part_key(prefix, task))
    if not store.put_if_absent(seal_key(prefix, task), seal.to_json()):
        seal = Seal.from_json(store.get(seal_key(prefix, task)))
    return seal


@contextmanager
def part_file() -> Iterator[tuple[BinaryIO, Path]]:
    """A file to build a part in; a full disk is said in words."""
    with tempfile.TemporaryDirectory(prefix="warpbeam-part-") as folder:
        path = Path(folder) / "part.bin"
        with disk_errors(path), path.open("wb") as file:
            yield file, path


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
    tasks: Sequence[Sequence[tuple[NDArray[np.integer], NDArray[np.bool_]]]],
    *,
    seq_len: int,
    packing: bool = True,
    task_sources: Sequence[int] | None = None,
) -> Index:
    """A data set from arrays, without a tokenizer or Ray: one part for each list of examples.

    Args:
        tasks: (token ids, which of them carry loss) of each example of each task.
        task_sources: the source of each task; all of them source 0 when absent.
    """
    of_task = list(task_sources) if task_sources is not None else [0] * len(tasks)
    named = tuple(
        Source(name, "tokens", (SourceFile(name, 0, "", None, "parquet"),))
        for name in (f"arrays-{source}" for source in range(max(of_task, default=0) + 1))
    )
    ranges = tuple(TaskRange(source, 0, task, task + 1) for task, source in enumerate(of_task))
    sources = Sources("arrays", seq_len, None, named, ranges)
    store.put(f"{prefix}/{SOURCES}", sources.to_json())
    done = []
    for task, arrays in enumerate(tasks):
        examples = [Example(ids, loss, line) for line, (ids, loss) in enumerate(arrays, 1)]  # type: ignore[arg-type]
        stats = TaskStats(lines=len(examples), records=len(examples), examples=len(examples))
        stats.tokens = sum(len(example.ids) for example in examples)
        stats.loss_tokens = sum(int(example.loss[1:].sum()) for example in examples)
        with part_file() as (file, path):
            built = build_part(examples, file, seq_len=seq_len, packing=packing)
            seal = store_part(store, prefix, task, path, built, stats)
        done.append((seal.totals, seal.stats))
    return write_index(store, prefix, sources, done)
