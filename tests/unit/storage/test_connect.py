from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from warpbeam.errors import UserError
from warpbeam.storage import StorageConfig, config_for, open_store, open_uri
from warpbeam.storage.local import LocalStore


def test_config_round_trip() -> None:
    config = StorageConfig(uri="s3://b/p/", kind="s3", endpoint_url="http://h:1/", region="eu-central-1")
    assert config.uri == "s3://b/p"
    assert config.endpoint_url == "http://h:1"
    assert StorageConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"uri": "s3://b", "kind": "gcs"}, "bad_storage"),
        ({"uri": "b/p", "kind": "s3"}, "bad_storage"),
        ({"uri": "s3://", "kind": "s3"}, "bad_storage"),
        ({"uri": "s3://b%2F../x", "kind": "s3"}, "bad_storage"),
        ({"uri": "s3://b", "kind": "local"}, "bad_storage"),
        ({"uri": "file://other-host/x", "kind": "local"}, "bad_storage"),
        ({"uri": "/x", "kind": "local"}, "bad_storage"),
        ({"uri": "s3://b", "kind": "s3", "secret": "x"}, "bad_storage"),
        ({"uri": "s3://b", "kind": "s3", "endpoint_url": "localhost:9000"}, "bad_endpoint"),
        ({"uri": "s3://b", "kind": "s3", "endpoint_url": "http://me:canary@host"}, "secret_in_address"),
    ],
)
def test_bad_configs(value: dict[str, str], reason: str) -> None:
    with pytest.raises(UserError) as caught:
        StorageConfig.from_dict(value)
    assert caught.value.reason == reason
    assert "canary" not in str(caught.value)


def test_local_addresses_are_unquoted(tmp_path: Path) -> None:
    folder = tmp_path / "with space and ü?#%20"
    store = open_store(StorageConfig(uri=folder.as_uri(), kind="local"))
    store.put("x", b"1")
    assert (folder / "x").read_bytes() == b"1"
    assert store.uri == folder.as_uri()


def test_open_uri_of_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.jsonl").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    pool = StorageConfig(uri="s3://b", kind="embedded")
    for spelling in (
        str(tmp_path / "d/x.jsonl"),
        "d/x.jsonl",
        "~/d/x.jsonl",
        "d/../d/x.jsonl",
        f"file://{tmp_path}/d/x.jsonl",
    ):
        store, key = open_uri(spelling, pool)
        assert isinstance(store, LocalStore)
        assert store.get(key) == b"1"
    store, key = open_uri("d/*.jsonl", None)
    assert f"/{key}" == str(tmp_path / "d/*.jsonl")
    store, key = open_uri("d/", None)
    assert [Path(info.key).name for info in store.list(f"{key}/")] == ["x.jsonl"]


def test_open_uri_of_buckets_goes_through_the_pools_endpoint() -> None:
    pool = StorageConfig(uri="s3://own/teams", kind="s3", endpoint_url="http://h:1", region="r")
    store, key = open_uri("s3://corp/a/*.jsonl", pool)
    assert (store.uri, key) == ("s3://corp", "a/*.jsonl")
    assert config_for("s3://corp", pool) == StorageConfig("s3://corp", "s3", "http://h:1", "r")
    assert config_for("s3://corp/x", None) == StorageConfig("s3://corp/x", "s3")
    assert config_for("/data/x", pool) == StorageConfig("file:///data/x", "local")
    assert open_uri("s3://corp", pool)[1] == ""
    assert open_uri("s3://corp/folder/", pool)[1] == "folder"


def test_unknown_schemes_are_named() -> None:
    with pytest.raises(UserError, match="gs://b/k") as caught:
        open_uri("gs://b/k", None)
    assert caught.value.reason == "bad_path"


def test_importing_storage_loads_no_client_and_nothing_heavy() -> None:
    script = (
        "import sys, warpbeam.storage, warpbeam.storage.layout, warpbeam.storage.check;"
        "print([m for m in ('boto3', 'botocore', 'torch', 'ray', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert found.stdout.strip() == "[]"
