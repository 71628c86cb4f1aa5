from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from tests.unit.storage.contract import StoreContract
from warpbeam.errors import InfraError, PlatformError, UserError
from warpbeam.storage import ObjectStore, StorageConfig, StoreSetupError, open_store
from warpbeam.storage.bandwidth import Bandwidth
from warpbeam.storage.check import check_store
from warpbeam.storage.disk import TEMP_PREFIX
from warpbeam.storage.local import LocalStore
from warpbeam.storage.parts import PART_BYTES
from warpbeam.storage.store import TransferCancelled


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(StorageConfig(uri=(tmp_path / "store").as_uri(), kind="local"))


class TestLocalStore(StoreContract):
    pass


def test_half_written_files_are_never_seen(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("runs/a/log/0", b"1")
    (tmp_path / "runs/a/log" / f"{TEMP_PREFIX}0123").write_bytes(b"half")
    (tmp_path / "runs" / f"{TEMP_PREFIX}dir").mkdir()
    assert [info.key for info in store.list("")] == ["runs/a/log/0"]
    assert store.list_dirs("runs") == ["a"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "s")
    store.put("a/b/c", b"1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "d").write_bytes(b"2")
    (tmp_path / "s/a/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "s/a/b/up").symlink_to(tmp_path / "s/a")
    assert [info.key for info in store.list("")] == ["a/b/c", "a/linked/d"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(TypeError):
        store.put("x", "text is not bytes")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_key_cannot_be_another_keys_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"1")
    store.put("b/c", b"1")
    for key in ("a/b", "b"):
        for write in (store.put, store.put_if_absent):
            with pytest.raises(UserError) as caught:
                write(key, b"2")
            assert caught.value.reason == "bad_key"
    assert store.get("a") == b"1"


def test_a_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(PlatformError, match="no hard links") as caught:
        LocalStore(tmp_path).put_if_absent("x", b"1")
    assert caught.value.reason == "no_conditional_put"
    assert list(tmp_path.iterdir()) == []


def test_a_repeated_link_request_that_won_is_a_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def link_twice(source: Path, target: Path) -> None:
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    assert LocalStore(tmp_path).put_if_absent("x", b"1") is True


def test_check_passes_on_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    config = StorageConfig(uri=(tmp_path / "new").as_uri(), kind="local")
    check_store(config)
    check_store(config)


def test_check_names_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreSetupError, match="not a folder") as caught:
        check_store(StorageConfig(uri=(tmp_path / "file" / "store").as_uri(), kind="local"))
    assert caught.value.exit_code == 2


def test_an_upload_is_given_up_between_parts_and_leaves_nothing(tmp_path: Path) -> None:
    store, source, given_up = LocalStore(tmp_path / "s"), tmp_path / "file", threading.Event()
    source.write_bytes(bytes(PART_BYTES + 1))
    threading.Timer(0.1, given_up.set).start()
    with pytest.raises(TransferCancelled):
        store.upload(source, "k", limit=Bandwidth(1), cancel=given_up)  # the second part's turn is months away
    assert list(store.list("")) == []
    assert list(store.unfinished("")) == []


def test_a_file_that_changes_its_size_is_not_stored(tmp_path: Path) -> None:
    class Grows(Bandwidth):
        def reserve(self, size: int) -> float:
            with source.open("ab") as file:
                file.write(b"more")
            return 0

    store, source = LocalStore(tmp_path / "s"), tmp_path / "file"
    source.write_bytes(bytes(1000))
    with pytest.raises(InfraError) as caught:
        store.upload(source, "k", limit=Grows(1))
    assert caught.value.reason == "size_mismatch"
    assert store.head("k") is None


def test_half_written_files_are_found_and_discarded(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("runs/a/log/0", b"1")
    half = tmp_path / "runs/a/checkpoints/1" / f"{TEMP_PREFIX}0123"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    os.utime(half, (time.time() - 100, time.time() - 100))
    assert list(store.unfinished("runs/b")) == []
    (left,) = store.unfinished("runs/a")
    assert left.key == f"runs/a/checkpoints/1/{half.name}"
    assert 100 <= left.age_s < 110
    store.discard(left)
    store.discard(left)
    assert not half.parent.exists()
    assert store.get("runs/a/log/0") == b"1"
