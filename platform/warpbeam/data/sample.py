"""Text from all over a job's data, for training a tokenizer on it and for looking at it.

Which records are taken depends on the tasks alone, so the same data give the same tokenizer on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from warpbeam.data.formats import RecordSource, columns_of
from warpbeam.data.records import RawRecord, read_records
from warpbeam.data.sources import Task

if TYPE_CHECKING:
    from warpbeam.storage import StorageConfig

SAMPLE_CHARS = 32 << 20
"""Enough for the merges of a vocabulary of tens of thousands to settle."""
SAMPLE_TASKS = 64
PIECE_CHARS = 1 << 20


def sample_texts(
    tasks: Sequence[Task],
    sources: Sequence[RecordSource],
    config: StorageConfig | None,
    *,
    limit_chars: int = SAMPLE_CHARS,
    all_fields: bool = False,
) -> Iterator[str]:
    """What people and models wrote in the records of evenly spread tasks; bad records are passed over.

    Args:
        sources: by `task.source`, with settled formats.
        all_fields: every text of a record rather than the format's fields (with code.render, which needs a tokenizer).
    """
    chosen = spread(tasks, SAMPLE_TASKS)
    for task in chosen:
        source = sources[task.source]
        columns = None if all_fields else columns_of(source.format, source.fields)
        left = limit_chars // len(chosen)
        for record in read_records(task, config, columns=columns):
            if not isinstance(record, RawRecord):
                continue
            value = record.value
            if isinstance(value, dict) and columns is not None:
                value = {name: value.get(name) for name in columns}
            for text in texts_of(value):
                yield text[: min(left, PIECE_CHARS)]
                left -= len(text)
                if left <= 0:
                    break
            if left <= 0:
                break


def spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """At most `count` of the tasks, evenly spread, the first among them."""
    step = max(1, -(-len(tasks) // count))
    return list(islice(tasks, 0, None, step))


def texts_of(value: Any) -> Iterable[str]:
    """Every string in a record but the roles of turns."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("role", "from", "type"):
                yield from texts_of(item)
    elif isinstance(value, list):
        for item in value:
            if not isinstance(item, int):
                yield from texts_of(item)
