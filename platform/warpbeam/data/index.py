"""The JSON files beside the parts: what a data prefix holds, and which of it is final.

    sources.json           written first: sources, their files, and the fixed list of tasks
    part-000123.bin        one task's rows (see `part.py`)
    part-000123.json       its seal, created only if absent, after the part: rows, sha256, loss tokens and records per
    row index.json             written when every task is sealed: rows and loss tokens per task, totals, statistics
    failed.json            why preparation gave up; removed by the next start

Only a seal makes a part real. Readers take the schema version here and the one before it, and refuse newer ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from warpbeam.data.files import SourceFile
from warpbeam.data.stats import KEPT_PLACES, BadPlace, TaskStats
from warpbeam.errors import DiskFull, InfraError, PlatformError, UserError, WarpbeamError
from warpbeam.storage.store import ObjectMissing, ObjectStore

VERSION = 1
"""Of all schemas below; part of the fingerprint, so parts of another version are other parts."""

SOURCES = "sources.json"
INDEX = "index.json"
FAILED = "failed.json"
_COUNTS = [field.name for field in fields(TaskStats) if field.name not in ("bad", "places")]


def part_key(prefix: str, task: int) -> str:
    return f"{prefix}/part-{task:06d}.bin"


def seal_key(prefix: str, task: int) -> str:
    return f"{prefix}/part-{task:06d}.json"


def add_stats(total: TaskStats, part: TaskStats) -> None:
    """Add one task's counts to a total, and keep the first places of bad records."""
    for name in _COUNTS:
        setattr(total, name, getattr(total, name) + getattr(part, name))
    for reason, count in part.bad.items():
        total.bad[reason] = total.bad.get(reason, 0) + count
    total.places = (total.places + part.places)[:KEPT_PLACES]


def stats_from_dict(value: Mapping[str, Any]) -> TaskStats:
    """Counts that went through JSON (`dataclasses.asdict`)."""
    places = [BadPlace(SourceFile(**file), *rest) for file, *rest in value["places"]]
    return TaskStats(**{**value, "places": places})


@dataclass(frozen=True)
class Source:
    """One entry of the job's data list, with the files that it stood for."""

    path: str
    format: str
    files: tuple[SourceFile, ...]


class TaskRange(NamedTuple):
    """The fixed piece of input that one part is made of."""

    source: int
    file: int
    """Position in the source's files."""
    start: int
    end: int


@dataclass(frozen=True)
class Sources:
    """`sources.json`."""

    fingerprint: str
    seq_len: int
    tokenizer: str | None
    """Prefix of the tokenizer's files in the same store; None where the data set was made from arrays."""
    sources: tuple[Source, ...]
    tasks: tuple[TaskRange, ...]

    def file_of(self, task: int) -> SourceFile:
        at = self.tasks[task]
        return self.sources[at.source].files[at.file]

    def to_json(self) -> bytes:
        body = {"fingerprint": self.fingerprint, "seq_len": self.seq_len, "tokenizer": self.tokenizer}
        return _dump("sources", body | {"sources": [asdict(s) for s in self.sources], "tasks": self.tasks})

    @classmethod
    def from_json(cls, data: bytes) -> Sources:
        value = _load("sources", data)
        sources = tuple(
            Source(s["path"], s["format"], tuple(SourceFile(**file) for file in s["files"])) for s in value["sources"]
        )
        tasks = tuple(TaskRange(*task) for task in value["tasks"])
        return cls(value["fingerprint"], value["seq_len"], value["tokenizer"], sources, tasks)


@dataclass(frozen=True)
class Seal:
    """`part-*.json`."""

    task: int
    sha256: str
    loss_tokens: tuple[int, ...]
    """Of each row."""
    records: tuple[tuple[int, ...], ...]
    """Of each row, the lines (rows, pieces) of its records within the task, from 1."""
    stats: TaskStats

    @property
    def rows(self) -> int:
        return len(self.loss_tokens)

    @property
    def totals(self) -> TaskTotals:
        return TaskTotals(self.rows, sum(self.loss_tokens), self.stats.lines)

    def to_json(self) -> bytes:
        body = {"task": self.task, "rows": self.rows, "sha256": self.sha256, "loss_tokens": self.loss_tokens}
        return _dump("seal", body | {"records": self.records, "stats": asdict(self.stats)})

    @classmethod
    def from_json(cls, data: bytes) -> Seal:
        value = _load("seal", data)
        records = tuple(map(tuple, value["records"]))
        stats = stats_from_dict(value["stats"])
        return cls(value["task"], value["sha256"], tuple(value["loss_tokens"]), records, stats)


class TaskTotals(NamedTuple):
    """One task in `index.json`."""

    rows: int
    loss_tokens: int
    lines: int
    """Of the task's file, so that a line's number in the file is known without reading it."""


@dataclass(frozen=True)
class Index:
    """`index.json`."""

    fingerprint: str
    seq_len: int
    tasks: tuple[TaskTotals, ...]
    stats: TaskStats

    @property
    def rows(self) -> list[int]:
        """Of each task."""
        return [task.rows for task in self.tasks]

    @property
    def total_rows(self) -> int:
        return sum(self.rows)

    @property
    def total_loss_tokens(self) -> int:
        return sum(task.loss_tokens for task in self.tasks)

    def to_json(self, tasks: Sequence[TaskRange]) -> bytes:
        listed = [{"source": at.source, **totals._asdict()} for at, totals in zip(tasks, self.tasks, strict=True)]
        totals = {"rows": self.total_rows, "tokens": self.stats.tokens, "loss_tokens": self.total_loss_tokens}
        body = {"fingerprint": self.fingerprint, "seq_len": self.seq_len, "totals": totals}
        return _dump("index", body | {"tasks": listed, "stats": asdict(self.stats)})

    @classmethod
    def from_json(cls, data: bytes) -> Index:
        value = _load("index", data)
        tasks = tuple(TaskTotals(task["rows"], task["loss_tokens"], task["lines"]) for task in value["tasks"])
        return cls(value["fingerprint"], value["seq_len"], tasks, stats_from_dict(value["stats"]))


def read_or_none(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectMissing:
        return None


def mark_failed(store: ObjectStore, prefix: str, error: WarpbeamError) -> None:
    """Tell the readers, which wait for seals, that none will come."""
    store.put(f"{prefix}/{FAILED}", _dump("failed", error.to_dict()))


def preparation_error(store: ObjectStore, prefix: str) -> WarpbeamError | None:
    """What preparation gave up for, if it did."""
    data = read_or_none(store, f"{prefix}/{FAILED}")
    if data is None:
        return None
    return error_from_dict(_load("failed", data))


def error_from_dict(value: Mapping[str, str]) -> WarpbeamError:
    """An error that went through JSON (`WarpbeamError.to_dict`), with its owner and so its exit code."""
    owners: dict[str, type[WarpbeamError]] = {"ml": UserError, "platform": PlatformError}
    cls = DiskFull if value["reason"] == DiskFull.default_reason else owners.get(value["owner"], InfraError)
    return cls(value["what"], why=value["why"], fix=value["fix"], reason=value["reason"])


def _dump(kind: str, body: Mapping[str, Any]) -> bytes:
    return json.dumps({"schema": f"warpbeam/data-{kind}/v{VERSION}", **body}, separators=(",", ":")).encode()


def _load(kind: str, data: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(data)
    name, _, version = str(value.get("schema", "")).rpartition("/v")
    if name != f"warpbeam/data-{kind}" or not version.isdigit():
        raise PlatformError(f"not a {kind} file of a prepared data set", reason="bad_data_index")
    if int(version) > VERSION:
        raise PlatformError(
            f"the prepared data was written by a newer warpbeam ({value['schema']})",
            fix="update warpbeam here, or prepare the data again under this version",
            reason="newer_schema",
        )
    return value
