"""What a person means by the word after `warpbeam deploy`."""

from __future__ import annotations

from pathlib import Path

import pytest

from warpbeam.cli.deploy import find_model
from warpbeam.errors import UserError
from warpbeam.storage.config import StorageConfig


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorageConfig:
    """A store with the model `mine`, and a working folder that `init mine` has made."""
    model = tmp_path / "store/teams/default/models/mine/1"
    model.mkdir(parents=True)
    (model / "export.json").write_text("{}")
    (model / "lineage.json").write_text('{"run": "mine", "step": 3, "at": "2026-01-01T00:00:00Z"}')
    (tmp_path / "work/mine").mkdir(parents=True)
    (tmp_path / "work/mine/job.yaml").write_text("name: mine\n")
    monkeypatch.chdir(tmp_path / "work")
    return StorageConfig(uri=(tmp_path / "store").as_uri(), kind="local")


def test_a_folder_of_the_same_name_is_not_the_model(store: StorageConfig) -> None:
    address, name = find_model("mine", store, None, None)
    assert address.endswith("/teams/default/models/mine/1")
    assert name == "mine"


@pytest.mark.parametrize("written", ["./mine", "mine/"])
def test_a_path_is_a_folder(store: StorageConfig, written: str) -> None:
    assert find_model(written, store, None, None) == ("mine", "mine")


def test_a_folder_with_a_model_is_meant(store: StorageConfig) -> None:
    Path("other").mkdir()
    Path("other/config.json").write_text("{}")
    assert find_model("other", store, None, None) == ("other", "other")


def test_an_address_is_taken_as_it_is(store: StorageConfig) -> None:
    assert find_model("s3://bucket/models/a/3/", store, None, None) == ("s3://bucket/models/a/3/", "a")
    assert find_model("hf://org/small", store, None, None) == ("hf://org/small", "small")


def test_neither_model_nor_run(store: StorageConfig) -> None:
    with pytest.raises(UserError, match="there is no model and no run 'nothing'") as caught:
        find_model("nothing", store, None, None)
    assert "the newest models there: mine; there are no runs at all" in str(caught.value)
