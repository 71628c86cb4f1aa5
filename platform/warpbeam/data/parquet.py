"""Parquet files by row groups, and of them only the columns that the format needs.

pyarrow is called here and nowhere else on the input side; its complaints become errors that name the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from warpbeam.data.files import SourceFile, missing_extra, open_file
from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.storage import StorageConfig

log = logging.getLogger(__name__)

GET_BYTES = 64 << 10
"""Little, so that columns that are not needed are not fetched with those that are; pyarrow joins what is near."""
BATCH_ROWS = 256
"""Rows turned into Python objects at once."""


def cut_row_groups(file: SourceFile, task_bytes: int, config: StorageConfig | None) -> list[tuple[int, int]]:
    """Ranges of row groups of about `task_bytes` stored bytes each (at least one row group)."""
    with _opened(file, config) as parquet:
        metadata = parquet.metadata
        ranges: list[tuple[int, int]] = []
        start, taken = 0, 0
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            if taken and taken + size > task_bytes:
                ranges.append((start, index))
                start, taken = index, 0
            taken += size
        if start < metadata.num_row_groups:
            ranges.append((start, metadata.num_row_groups))
    return ranges


def iter_rows(
    file: SourceFile, start: int, end: int, columns: Sequence[str] | None, config: StorageConfig | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of the row groups `[start, end)` with their number in the file, from 1.

    Args:
        columns: those that are not there are left out; None reads all.
    """
    with _opened(file, config) as parquet:
        number = sum(parquet.metadata.row_group(index).num_rows for index in range(start))
        present = None if columns is None else [name for name in parquet.schema_arrow.names if name in set(columns)]
        for batch in parquet.iter_batches(BATCH_ROWS, row_groups=range(start, end), columns=present, use_threads=False):
            for row in _python_rows(batch):
                number += 1
                yield number, row


def _python_rows(batch: Any) -> list[dict[str, Any]]:
    """The rows as dictionaries; a column that Python has no values for (a date in the year 20000) is left out."""
    try:
        return batch.to_pylist() if batch.num_columns else [{}] * batch.num_rows
    except (ValueError, OverflowError):
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                columns[name] = column.to_pylist()
            except (ValueError, OverflowError) as error:
                log.warning("column %s is left out: %s", name, error)
        return [{name: values[row] for name, values in columns.items()} for row in range(batch.num_rows)]


@contextmanager
def _opened(file: SourceFile, config: StorageConfig | None) -> Iterator[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing_extra("Parquet") from error

    stream = open_file(file, config, get_bytes=GET_BYTES)
    try:
        with pq.ParquetFile(stream, pre_buffer=True) as parquet:
            yield parquet
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{file.uri} is not a whole Parquet file",
            why=str(error).splitlines()[0],
            fix="write or copy the file again",
            reason="broken_parquet",
        ) from error
    finally:
        stream.close()
