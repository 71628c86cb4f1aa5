"""A first look at the data of a job that will not have bad records, before any worker is started.

A broken line near the beginning is told in seconds instead of after a cluster's start. Only what can be seen without a
tokenizer is looked at, and only so much of the data; preparation looks at all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warpbeam.data.bad_records import bad_records_error
from warpbeam.data.formats import Conversation, RecordSource, columns_of, normalise
from warpbeam.data.messages import ChatError, carries_loss, clean_messages
from warpbeam.data.records import BadRecord, BadRecordError, Blank, RawRecord, read_records
from warpbeam.data.sources import Task
from warpbeam.data.stats import TaskStats
from warpbeam.storage.config import StorageConfig

LOOKED_AT_BYTES = 8 << 20
"""About a tenth of a second."""


def refuse_bad_records(
    tasks: Sequence[Task],
    sources: Sequence[RecordSource],
    config: StorageConfig | None,
    *,
    limit_bytes: int = LOOKED_AT_BYTES,
) -> None:
    """Raise UserError for the first task that has a bad record.

    Args:
        sources: by `task.source`, with settled formats.
        limit_bytes: whole tasks are looked at, as many as fit; a compressed file counts as it is stored.
    """
    for task in tasks:
        limit_bytes -= task.end - task.start
        if limit_bytes < 0:
            return
        source = sources[task.source]
        stats = _look(task, source.format, source.fields, config)
        if stats.bad:
            raise bad_records_error(stats, config)


def _look(task: Task, format_name: str, fields: Mapping[str, str], config: StorageConfig | None) -> TaskStats:
    stats = TaskStats()
    for record in read_records(task, config, columns=columns_of(format_name, fields)):
        if isinstance(record, Blank):
            continue
        stats.records += 1
        if isinstance(record, BadRecord):
            stats.bad_record(task.file, record.offset, record.reason, record.detail)
            continue
        try:
            _check(record, format_name, fields)
        except BadRecordError as bad:
            stats.bad_record(task.file, record.offset, bad.reason, bad.detail)
        except ChatError as bad:
            stats.bad_record(task.file, record.offset, bad.reason, bad.in_one_line())
    return stats


def _check(record: RawRecord, format_name: str, fields: Mapping[str, str]) -> None:
    found = normalise(record.value, format_name, fields)
    if isinstance(found, Conversation):
        turns = clean_messages(found.messages)
        pairs = zip(turns, found.messages, strict=True)
        if not any(turn["role"] == "assistant" and carries_loss(given) for turn, given in pairs):
            raise BadRecordError("no_loss", "no assistant turn that carries loss, so there is nothing to learn from")
