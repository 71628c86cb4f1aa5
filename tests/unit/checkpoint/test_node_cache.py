"""Once per node: one fetches, the others wait; what died half way is fetched again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from warpbeam.checkpoint.node_cache import fetch_once


def test_one_fetches_and_all_get_it(tmp_path: Path) -> None:
    fetched: list[Path] = []

    def fetch(path: Path) -> None:
        fetched.append(path)
        path.write_text("content")

    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch_once(tmp_path / "cache", "name", fetch))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1
    assert results == [tmp_path / "cache" / "name"] * 8
    assert results[0].read_text() == "content"


def test_a_failed_fetch_leaves_nothing_and_may_be_tried_again(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.mkdir()
        (path / "half").write_text("x")
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        fetch_once(tmp_path, "name", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["name.lock"]
    assert fetch_once(tmp_path, "name", lambda path: path.mkdir()).is_dir()


def test_what_a_killed_process_left_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "name.partial").mkdir()
    (tmp_path / "name.partial" / "half").write_text("x")
    fetch_once(tmp_path, "name", lambda path: path.mkdir())
    assert list((tmp_path / "name").iterdir()) == []
