"""The bundle in a pod is the one that was rendered, or none."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from warpbeam.errors import InfraError, UserError
from warpbeam.launch.bundle import content_digest, pack, read_folder
from warpbeam.launch.fetch_bundle import fetch
from warpbeam.storage.local import LocalStore

KEY = "teams/red/bundles/x.zip"


@pytest.fixture
def packed(tmp_path: Path) -> tuple[LocalStore, str]:
    work = tmp_path / "work"
    (work / "pkg").mkdir(parents=True)
    (work / "job.yaml").write_text("name: a\n")
    (work / "pkg/tool.sh").write_text("#!/bin/sh\n")
    os.chmod(work / "pkg/tool.sh", 0o755)
    bundle = pack(read_folder(work), tmp_path / "bundle.zip")
    store = LocalStore(tmp_path / "store")
    store.put(KEY, bundle.path.read_bytes())
    return store, bundle.digest


def test_a_bundle_arrives_as_it_was_packed(packed: tuple[LocalStore, str], tmp_path: Path) -> None:
    store, digest = packed
    assert fetch(store, KEY, digest, tmp_path / "into") == 2
    assert (tmp_path / "into/job.yaml").read_text() == "name: a\n"
    assert os.access(tmp_path / "into/pkg/tool.sh", os.X_OK)
    assert not os.access(tmp_path / "into/job.yaml", os.X_OK)


def test_another_content_is_refused(packed: tuple[LocalStore, str], tmp_path: Path) -> None:
    store, _ = packed
    with pytest.raises(InfraError, match="is not what was rendered"):
        fetch(store, KEY, "0" * 64, tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_none_says_how_it_gets_there(packed: tuple[LocalStore, str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no bundle") as caught:
        fetch(packed[0], "teams/red/bundles/y.zip", packed[1], tmp_path / "into")
    assert "--upload" in caught.value.fix


def test_nothing_leaves_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "evil.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../outside", "x")
    store = LocalStore(tmp_path / "store")
    store.put(KEY, path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        digest = content_digest(archive)
    with pytest.raises(UserError, match="leads outside"):
        fetch(store, KEY, digest, tmp_path / "into")
