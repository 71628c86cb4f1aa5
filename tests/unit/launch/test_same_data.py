"""The same name with other data behind the same paths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.launch.jobs import job
from warpbeam.checkpoint.log import RunLog
from warpbeam.data.files import SourceFile
from warpbeam.data.index import Source, Sources
from warpbeam.data.sources import expand
from warpbeam.errors import UserError
from warpbeam.launch.same_data import changed_files, check_same_data
from warpbeam.record import keys
from warpbeam.record.view import RunView
from warpbeam.storage import StorageConfig, open_store

PREFIX = "teams/default/data/one"


@pytest.fixture
def config(tmp_path: Path) -> StorageConfig:
    return StorageConfig(uri=(tmp_path / "store").as_uri(), kind="local")


@pytest.fixture
def view(tmp_path: Path, config: StorageConfig) -> RunView:
    """A run that was given the word to train on PREFIX, made of data.jsonl; nothing is committed yet."""
    store = open_store(config)
    (tmp_path / "data.jsonl").write_text("{}\n")
    RunLog(store, "default", "tiny").claim("a1").state("stopped", "asked")
    word = {"go": True, "spec": {"data": {"train_prefix": PREFIX, "eval_prefix": None}}}
    store.put(keys.go("default", "tiny", "a1"), json.dumps(word).encode())
    files: tuple[SourceFile, ...] = expand("data.jsonl", tmp_path, None).files
    sources = Sources("one", 64, None, (Source("data.jsonl", "messages", files),), ())
    store.put(f"{PREFIX}/sources.json", sources.to_json())
    return RunView(store, "default", "tiny")


def test_a_run_with_a_checkpoint_goes_on_with_its_own_data_only(view: RunView) -> None:
    check_same_data(view, "teams/default/data/two")  # no step of it is kept: nothing to mix
    RunLog(view.store, "default", "tiny").claim("a2").commit(2, "manifest", "0" * 64)
    check_same_data(view, PREFIX)
    with pytest.raises(UserError, match="has changed since its checkpoint") as caught:
        check_same_data(view, "teams/default/data/two")
    assert "--fresh" in caught.value.fix


def test_of_a_finished_run_the_changed_files_are_told(view: RunView, tmp_path: Path, config: StorageConfig) -> None:
    assert changed_files(view, job(), tmp_path, config) == []
    (tmp_path / "data.jsonl").write_text("{}\n{}\n")
    assert changed_files(view, job(), tmp_path, config) == [str(tmp_path / "data.jsonl")]
    more = job(data={"train": [{"path": "*.jsonl"}], "seq_len": 64})
    (tmp_path / "more.jsonl").write_text("{}\n")
    assert changed_files(view, more, tmp_path, config) == [str(tmp_path / f"{name}.jsonl") for name in ("data", "more")]


def test_nothing_is_told_where_nobody_can_know(view: RunView, tmp_path: Path, config: StorageConfig) -> None:
    (tmp_path / "data.jsonl").unlink()
    assert changed_files(view, job(), tmp_path, config) == []
    assert changed_files(RunView(view.store, "default", "other"), job(), tmp_path, config) == []
