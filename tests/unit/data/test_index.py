from __future__ import annotations

from pathlib import Path

import pytest

from warpbeam.data.files import SourceFile
from warpbeam.data.index import (
    Index,
    Seal,
    Source,
    Sources,
    TaskRange,
    TaskTotals,
    add_stats,
    mark_failed,
    part_key,
    preparation_error,
    seal_key,
)
from warpbeam.data.stats import BadPlace, TaskStats
from warpbeam.errors import InfraError, PlatformError, UserError, WarpbeamError
from warpbeam.storage.local import LocalStore

FILE = SourceFile("s3://b/a.jsonl.gz", 100, "e1", "gz", "jsonl")
PLACE = BadPlace(FILE, 40, "broken_json", "no end")
STATS = TaskStats(lines=9, records=7, bad={"broken_json": 2}, places=[PLACE], examples=5, tokens=90)


def test_keys() -> None:
    assert part_key("teams/a/data/f", 12) == "teams/a/data/f/part-000012.bin"
    assert seal_key("teams/a/data/f", 1234567) == "teams/a/data/f/part-1234567.json"


def test_files_read_back_as_written() -> None:
    tasks = (TaskRange(0, 0, 0, 50), TaskRange(0, 1, 50, 100))
    plain = SourceFile("/data/b.txt", 5, "e2", None, "txt")
    sources = Sources("abc", 2048, "teams/a/data/tokenizers/t", (Source("s3://b/*", "messages", (FILE, plain)),), tasks)
    assert Sources.from_json(sources.to_json()) == sources
    assert sources.file_of(1) == plain
    seal = Seal(3, "00ff", (10, 0), ((0, 1), (2,)), STATS)
    assert Seal.from_json(seal.to_json()) == seal
    assert seal.rows == 2
    assert seal.totals == TaskTotals(rows=2, loss_tokens=10, lines=9)
    index = Index("abc", 2048, (seal.totals, TaskTotals(0, 0, 3)), STATS)
    assert Index.from_json(index.to_json(tasks)) == index


def test_statistics_add_up() -> None:
    total = TaskStats(bad={"wrong_type": 1}, places=[PLACE] * 4)
    add_stats(total, STATS)
    add_stats(total, STATS)
    assert (total.lines, total.records, total.tokens) == (18, 14, 180)
    assert total.bad == {"wrong_type": 1, "broken_json": 4}
    assert len(total.places) == 5


def test_a_newer_schema_and_another_file_are_refused() -> None:
    data = Seal(0, "", (), (), TaskStats()).to_json()
    with pytest.raises(PlatformError, match="written by a newer warpbeam"):
        Seal.from_json(data.replace(b"/v1", b"/v2"))
    with pytest.raises(PlatformError, match="not a index file"):
        Index.from_json(data)


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        (UserError("bad", why="w", fix="f", reason="bad_records"), UserError),
        (PlatformError("down"), PlatformError),
        (InfraError("disk full"), InfraError),
        (WarpbeamError("odd"), InfraError),
    ],
)
def test_the_failed_marker_brings_the_error_to_the_readers(
    tmp_path: Path, error: WarpbeamError, cls: type[WarpbeamError]
) -> None:
    store = LocalStore(tmp_path)
    assert preparation_error(store, "teams/a/data/f") is None
    mark_failed(store, "teams/a/data/f", error)
    read = preparation_error(store, "teams/a/data/f")
    assert type(read) is cls
    assert (read.what, read.why, read.fix, read.reason) == (error.what, error.why, error.fix, error.reason)
