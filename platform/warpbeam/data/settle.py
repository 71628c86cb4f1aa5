"""A job's data section with everything settled that is left open in it: which files, which format, which tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from warpbeam.data.examples import settle_format
from warpbeam.data.files import SourceFile
from warpbeam.data.sources import Task, cut_tasks, expand
from warpbeam.job import DataSource
from warpbeam.storage.config import StorageConfig


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
        format_name = source.format if rendered else settle_format(source, expansion.files, config)
        passed_over = expansion.summary()
        note = f"{source.path}: passed over {passed_over}" if passed_over else ""
        settled.append(SettledSource(source.path, format_name, source.fields, expansion.files, note))
    return settled


def settle_tasks(sources: Sequence[SettledSource], config: StorageConfig) -> list[Task]:
    """The tasks of all sources, in order; their position is their number."""
    return [
        task for number, source in enumerate(sources) for task in cut_tasks(source.files, source=number, config=config)
    ]


def file_identity(files: Sequence[SourceFile]) -> list[list[str | int]]:
    """What tells whether the files are still the same ones."""
    return [[file.uri, file.size, file.stamp] for file in files]
