"""A job's data section with everything settled that is left open in it: which files, which format, which tasks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from warpbeam.data.examples import settle_format
from warpbeam.data.files import READ_BYTES, SourceFile, open_file, reading
from warpbeam.data.sources import Task, cut_tasks, expand
from warpbeam.errors import UserError
from warpbeam.job import DataSource
from warpbeam.storage.config import StorageConfig

HASHED_BYTES = 1 << 30
"""Local data up to this size is known by its content (about a second), larger data by size and modification time."""


@dataclass(frozen=True)
class SettledSource:
    """A data source as its tasks read it."""

    path: str
    format: str
    fields: Mapping[str, str]
    files: tuple[SourceFile, ...]
    note: str = field(default="", compare=False)
    """What was passed over, in words."""


def settle_sources(
    sources: Sequence[DataSource], root: Path, config: StorageConfig, *, rendered: bool
) -> list[SettledSource]:
    """Find each source's files and its format.

    Args:
        rendered: the job's own code.render decides what a record means, so a format need not be found.

    Raises:
        UserError: nothing is there, or its format cannot be told.
    """
    settled = []
    for source in sources:
        expansion = expand(source.path, root, config)
        format_name = source.format if rendered else _format(source, expansion.files, config)
        passed_over = expansion.summary()
        note = f"{source.path}: passed over {passed_over}" if passed_over else ""
        settled.append(SettledSource(source.path, format_name, source.fields, expansion.files, note))
    return settled


def _format(source: DataSource, files: tuple[SourceFile, ...], config: StorageConfig) -> str:
    try:
        return settle_format(source, files, config)
    except UserError as error:
        if source.path not in error.what:  # a job has several sources
            error.what = f"{source.path}: {error.what}"
        raise


def settle_tasks(sources: Sequence[SettledSource], config: StorageConfig) -> list[Task]:
    """The tasks of all sources, in order; their position is their number."""
    return [
        task for number, source in enumerate(sources) for task in cut_tasks(source.files, source=number, config=config)
    ]


def source_identity(source: SettledSource, root: Path) -> dict[str, Any]:
    """What of a source decides what is made of it, as JSON.

    Objects go by address and ETag. Local files below the job's folder go by their path within it, and by content as
    long as that is quick: a checkout or a bundle elsewhere has other paths and other times, and is still the same data.
    """
    quick = sum(file.size for file in source.files if not _is_object(file)) <= HASHED_BYTES
    files = [
        [_name(file, root), file.size, _content(file) if quick and not _is_object(file) else file.stamp]
        for file in source.files
    ]
    return {"files": files, "format": source.format, "fields": dict(source.fields)}


def _is_object(file: SourceFile) -> bool:
    return file.uri.startswith("s3://")


def _name(file: SourceFile, root: Path) -> str:
    folder = os.path.abspath(root)
    inside = not _is_object(file) and Path(file.uri).is_relative_to(folder)
    return Path(file.uri).relative_to(folder).as_posix() if inside else file.uri


@lru_cache(maxsize=100_000)
def _content(file: SourceFile) -> str:
    digest = hashlib.sha256()
    with reading(file.uri), open_file(file, None) as stream:
        while data := stream.read(READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
