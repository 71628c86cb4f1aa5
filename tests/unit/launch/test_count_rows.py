"""Rows of an epoch from file sizes, where the files are here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.plan.jobs import job
from warpbeam.launch.count_rows import BYTES_PER_TOKEN, MARKUP, estimate_rows
from warpbeam.plan.plan import total_steps


def test_local_files_are_weighed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(b"x" * 400_000)
    (tmp_path / "data" / "_part.jsonl").write_bytes(b"x" * 400_000)
    expected = 400_000 / MARKUP / BYTES_PER_TOKEN / 128
    assert estimate_rows(job(), tmp_path) == pytest.approx(expected, abs=1)
    assert estimate_rows(job(data__train=[{"path": "data/*.jsonl"}]), tmp_path) == estimate_rows(job(), tmp_path)


def test_what_is_elsewhere_is_not_asked_for(tmp_path: Path) -> None:
    assert estimate_rows(job(data__train=[{"path": "s3://bucket/data"}]), tmp_path) is None
    assert estimate_rows(job(), tmp_path) is None


def test_steps_to_the_end() -> None:
    assert total_steps(job(), None) is None
    assert total_steps(job(), 160) == 10
    assert total_steps(job(train__epochs=2.5), 160) == 25
    assert total_steps(job(train__max_steps=7), 160) == 7
    assert total_steps(job(train__max_steps=7), None) == 7
