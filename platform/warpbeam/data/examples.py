"""From a task to the examples it trains on: read, bring to a shape, encode, count.

`iter_examples` is what a preparation task runs. It is a pure function of the task's bytes and the encoder, so its
output is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from warpbeam.data.chat import ChatError, Ids, Mask
from warpbeam.data.encoder import Encoder, OverLengthError
from warpbeam.data.files import SourceFile
from warpbeam.data.formats import RecordSource, columns_of, detect_format
from warpbeam.data.records import BadRecord, BadRecordError, Blank, RawRecord, name_places, read_records
from warpbeam.data.sources import Task, cut_tasks
from warpbeam.data.stats import BadPlace, TaskStats, describe_places
from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.storage import StorageConfig

__all__ = ["BadPlace", "Encoder", "Example", "TaskStats", "describe_places", "iter_examples", "settle_format"]

LOOKED_AT_FILES, LOOKED_AT_RECORDS = 8, 100
"""From how much the format is told when the job leaves it open."""


class Example(NamedTuple):
    """A sequence to learn from."""

    ids: Ids
    """[n], 2 <= n <= seq_len."""
    loss: Mask
    """[n]: this token is a target. Never the first, which nothing predicts."""
    task_line: int = 0
    """Line or row within the task, from 1: the file's is this plus the `lines` of the file's earlier tasks."""
    offset: int = 0
    """See RawRecord."""


def iter_examples(
    task: Task, source: RecordSource, encoder: Encoder, config: StorageConfig | None, stats: TaskStats
) -> Iterator[Example]:
    """The examples of a task in the file's order.

    Args:
        source: the format must be settled (`examples.settle_format`), or two tasks could settle it differently.
        stats: filled on the way; complete when the iterator is at its end.

    Raises:
        UserError: a file that cannot be read, or a record longer than seq_len where over_length is `fail`.
    """
    columns = None if encoder.render else columns_of(source.format, source.fields)
    for record in read_records(task, config, columns=columns):
        stats.lines = record.task_line
        if isinstance(record, Blank):
            continue
        stats.records += 1
        if isinstance(record, BadRecord):
            stats.bad_record(task.file, record.offset, record.reason, record.detail)
            continue
        try:
            examples = encoder.encode_record(record.value, source, stats)
        except BadRecordError as bad:
            stats.bad_record(task.file, record.offset, bad.reason, bad.detail)
            continue
        except ChatError as bad:
            stats.bad_record(task.file, record.offset, bad.reason, bad.in_one_line())
            continue
        except OverLengthError as error:
            raise UserError(
                f"{name_places(task.file, [record.offset], config)[0]}: {error}",
                why="data.over_length is fail",
                fix="raise data.seq_len, or set over_length to truncate, split or drop",
                reason="over_length",
            ) from error
        for ids, loss in examples:
            stats.examples += 1
            stats.tokens += len(ids)
            stats.loss_tokens += int(loss.sum())
            yield Example(ids, loss, record.task_line, record.offset)


def settle_format(source: RecordSource, files: Sequence[SourceFile], config: StorageConfig | None) -> str:
    """The format of a source: what the job says, else what the first records of its first files look like.

    Raises:
        UserError: no format fits, several do, or there is no readable record in what was looked at.
    """
    if source.format != "auto":
        return source.format
    values: list[dict[str, Any] | str] = []
    bad: list[BadPlace] = []
    for file in files[:LOOKED_AT_FILES]:
        for task in cut_tasks([file], config=config)[:1]:
            records = (record for record in read_records(task, config) if not isinstance(record, Blank))
            for record in islice(records, LOOKED_AT_RECORDS):
                if isinstance(record, RawRecord):
                    values.append(record.value)
                else:
                    bad.append(BadPlace(file, record.offset, record.reason, record.detail))
    if values:
        return detect_format(values, source.fields)
    where = ", ".join(file.uri for file in files[:LOOKED_AT_FILES]) or "the source"
    if bad:
        raise UserError(
            f"none of the first records of {where} can be read",
            why=describe_places(bad[:1], config)[0],
            fix="mend the file, or name another",
            reason="bad_records",
        )
    raise UserError(
        f"no records: only blank lines in {where}", fix="name another file under data:", reason="no_records"
    )
