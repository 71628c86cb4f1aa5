from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from warpbeam.data.part_cache import PartCache
from warpbeam.errors import InfraError, PlatformError
from warpbeam.storage.local import LocalStore


class CountingStore(LocalStore):
    """Counts downloads; a test may hook in before each."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.downloads: list[str] = []

    def download(self, key: str, path: Path) -> None:
        self.downloads.append(key)
        super().download(key, path)


class FullDisk(LocalStore):
    def download(self, key: str, path: Path) -> None:
        raise OSError(28, os.strerror(28))


def put(store: LocalStore, key: str, data: bytes) -> str:
    store.put(key, data)
    return hashlib.sha256(data).hexdigest()


def test_several_readers_of_one_folder_fetch_a_part_once(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    sha = put(store, "p", b"x" * 1000)
    caches = [PartCache(store, tmp_path / "cache") for _ in range(4)]
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda c=cache: got.append(c.open("p", sha).tobytes())) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [b"x" * 1000] * 4
    assert store.downloads == ["p"]


def test_equal_parts_of_different_data_sets_are_kept_once(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    sha = put(store, "a/p", b"same")
    put(store, "b/p", b"same")
    cache = PartCache(store, tmp_path / "cache")
    cache.open("a/p", sha)
    cache.open("b/p", sha)
    assert store.downloads == ["a/p"]


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    shas = {name: put(store, name, name.encode() * 100) for name in "abcd"}
    cache = PartCache(store, tmp_path / "cache", limit_bytes=300)
    for age, name in enumerate("cab"):
        cache.fetch(name, shas[name])
        path = tmp_path / "cache" / f"{shas[name]}.bin"
        os.utime(path, (1000 + age, 1000 + age))
    PartCache(store, tmp_path / "cache").open("c", shas["c"])  # used again
    cache.fetch("d", shas["d"])
    kept = {path.stem for path in (tmp_path / "cache").glob("*.bin")}
    assert kept == {shas[name] for name in "bcd"}


def test_an_evicted_part_stays_readable_while_mapped_and_comes_back(tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    shas = {name: put(store, name, name.encode() * 100) for name in "ab"}
    cache = PartCache(store, tmp_path / "cache", limit_bytes=100)
    first = cache.open("a", shas["a"])
    cache.open("b", shas["b"])
    assert not (tmp_path / "cache" / f"{shas['a']}.bin").exists()
    assert first.tobytes() == b"a" * 100
    assert PartCache(store, tmp_path / "cache").open("a", shas["a"]).tobytes() == b"a" * 100
    assert store.downloads == ["a", "b", "a"]


def test_what_a_killed_process_left_behind_is_removed_in_time(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    sha = put(store, "a", b"a" * 100)
    cache = PartCache(store, tmp_path / "cache", limit_bytes=150)
    left, arriving = tmp_path / "cache" / "left", tmp_path / "cache" / "arriving"
    for file in (left, arriving):
        file.write_bytes(b"?" * 100)
    os.utime(left, (1000, 1000))
    cache.fetch("a", sha)
    assert not left.exists()
    assert arriving.exists()


def test_a_wrong_part_is_refused_and_not_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    put(store, "a", b"rotten")
    with pytest.raises(PlatformError, match="not the part that its seal describes"):
        PartCache(store, tmp_path / "cache").open("a", hashlib.sha256(b"sound").hexdigest())
    assert not list((tmp_path / "cache").glob("*.bin"))
    assert not list((tmp_path / "cache").glob("*.arriving"))


def test_a_full_disk_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="disk full") as caught:
        PartCache(FullDisk(tmp_path / "store"), tmp_path / "cache").open("a", "0" * 64)
    assert caught.value.reason == "disk_full"


def test_a_part_that_another_process_evicts_at_once_is_still_read(tmp_path: Path) -> None:
    class Crowded(PartCache):
        """Its folder is full of other processes' newer parts."""

        def _evict(self, keep: Path) -> None:
            keep.unlink()

    store = LocalStore(tmp_path / "store")
    sha = put(store, "a", b"a" * 100)
    assert bytes(Crowded(store, tmp_path / "cache").open("a", sha)) == b"a" * 100
