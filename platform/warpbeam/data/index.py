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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from warpbeam.data.files import SourceFile
from warpbeam.errors import InfraError, PlatformError, UserError, WarpbeamError
from warpbeam.storage.store import ObjectMissing, ObjectStore

VERSION = 1
"""Of all schemas below; part of the fingerprint, so parts of another version are other parts."""

SOURCES = "sources.json"
INDEX = "index.json"
FAILED = "failed.json"
_FIRST_PLACES = 5


def part_key(prefix: str, task: int) -> str:
    return f"{prefix}/part-{task:06d}.bin"


def seal_key(prefix: str, task: int) -> str:
    return f"{prefix}/part-{task:06d}.json"


@dataclass
class Stats:
    """What became of the records of one task, or of all of them."""

    records: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    """Records that could not be used, by reason."""
    first_bad: list[str] = field(default_factory=list)
    """The first of them, as `file:line: reason: detail`."""
    truncated: int = 0
    split: int = 0
    dropped: int = 0
    examples: int = 0
    tokens: int = 0
    """Without padding."""
    loss_tokens: int = 0

    def add(self, other: Stats) -> None:
        for name in ("records", "truncated", "split", "dropped", "examples", "tokens", "loss_tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bad.update(other.bad)
        self.first_bad = (self.first_bad + other.first_bad)[:_FIRST_PLACES]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"bad": dict(self.bad)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Stats:
        return cls(**{**value, "bad": Counter(value["bad"])})


@dataclass(frozen=True)
class Source:
    """One entry of the job's data list, with the files that it stood for."""

    path: str
    format: str
    files: tuple[SourceFile, ...]


@dataclass(frozen=True)
class TaskRange:
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
    sources: tuple[Source, ...]
    tasks: tuple[TaskRange, ...]

    def file_of(self, task: int) -> SourceFile:
        at = self.tasks[task]
        return self.sources[at.source].files[at.file]

    def to_json(self) -> bytes:
        tasks = [[t.source, t.file, t.start, t.end] for t in self.tasks]
        body = {"fingerprint": self.fingerprint, "seq_len": self.seq_len}
        return _dump("sources", body | {"sources": [asdict(s) for s in self.sources], "tasks": tasks})

    @classmethod
    def from_json(cls, data: bytes) -> Sources:
        value = _load("sources", data)
        sources = tuple(
            Source(s["path"], s["format"], tuple(SourceFile(**file) for file in s["files"])) for s in value["sources"]
        )
        return cls(value["fingerprint"], value["seq_len"], sources, tuple(TaskRange(*t) for t in value["tasks"]))


@dataclass(frozen=True)
class Seal:
    """`part-*.json`."""

    task: int
    sha256: str
    loss_tokens: tuple[int, ...]
    """Of each row."""
    records: tuple[tuple[int, ...], ...]
    """Of each row, where in the task's file its examples came from: byte offsets (jsonl, txt) or row numbers from 0."""
    stats: Stats

    @property
    def rows(self) -> int:
        return len(self.loss_tokens)

    def to_json(self) -> bytes:
        body = {"task": self.task, "rows": self.rows, "sha256": self.sha256, "loss_tokens": self.loss_tokens}
        return _dump("seal", body | {"records": self.records, "stats": self.stats.to_dict()})

    @classmethod
    def from_json(cls, data: bytes) -> Seal:
        value = _load("seal", data)
        records = tuple(map(tuple, value["records"]))
        stats = Stats.from_dict(value["stats"])
        return cls(value["task"], value["sha256"], tuple(value["loss_tokens"]), records, stats)


@dataclass(frozen=True)
class Index:
    """`index.json`."""

    fingerprint: str
    seq_len: int
    rows: tuple[int, ...]
    """Of each task."""
    loss_tokens: tuple[int, ...]
    """Of each task."""
    stats: Stats

    @property
    def total_rows(self) -> int:
        return sum(self.rows)

    def to_json(self, tasks: Sequence[TaskRange]) -> bytes:
        listed = [
            {"source": t.source, "rows": rows, "loss_tokens": loss}
            for t, rows, loss in zip(tasks, self.rows, self.loss_tokens, strict=True)
        ]
        totals = {"rows": self.total_rows, "tokens": self.stats.tokens, "loss_tokens": self.stats.loss_tokens}
        body = {"fingerprint": self.fingerprint, "seq_len": self.seq_len, "totals": totals}
        return _dump("index", body | {"tasks": listed, "stats": self.stats.to_dict()})

    @classmethod
    def from_json(cls, data: bytes) -> Index:
        value = _load("index", data)
        rows = tuple(t["rows"] for t in value["tasks"])
        loss_tokens = tuple(t["loss_tokens"] for t in value["tasks"])
        return cls(value["fingerprint"], value["seq_len"], rows, loss_tokens, Stats.from_dict(value["stats"]))


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
    value = _load("failed", data)
    owners: dict[str, type[WarpbeamError]] = {"ml": UserError, "platform": PlatformError}
    cls = owners.get(value["owner"], InfraError)
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
