"""What every object store must do, whatever is behind it: run against a folder here, and against S3 in integration."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warpbeam.errors import UserError
from warpbeam.storage import ObjectMissing, ObjectStore
from warpbeam.storage.store import TransferCancelled


class StoreContract:
    """Subclasses give a `store` fixture: an empty store, fresh for each test."""

    def test_put_get_whole_and_by_range(self, store: ObjectStore) -> None:
        store.put("a/b.bin", b"0123456789")
        assert store.get("a/b.bin") == b"0123456789"
        assert store.get("a/b.bin", 3) == b"3456789"
        assert store.get("a/b.bin", 3, 4) == b"3456"
        assert store.get("a/b.bin", length=2) == b"01"
        store.put("a/b.bin", b"new")
        assert store.get("a/b.bin") == b"new"

    def test_ranges_are_cut_at_the_end_like_slices(self, store: ObjectStore) -> None:
        store.put("ten", b"0123456789")
        store.put("empty", b"")
        assert store.get("ten", 8, 100) == b"89"
        assert store.get("ten", 10) == b""
        assert store.get("ten", 1000, 5) == b""
        assert store.get("ten", 5, 0) == b""
        assert store.get("empty") == b""
        assert store.get("empty", 0, 7) == b""
        with pytest.raises(ValueError, match="negative"):
            store.get("ten", -1)

    def test_missing_object(self, store: ObjectStore, tmp_path: Path) -> None:
        for ask in (
            lambda: store.get("no/such"),
            lambda: store.get("no/such", 0, 0),
            lambda: store.open_stream("no/such"),
            lambda: store.download("no/such", tmp_path / "x"),
        ):
            with pytest.raises(ObjectMissing, match="no/such"):
                ask()
        assert store.head("no/such") is None
        store.delete("no/such")
        assert not (tmp_path / "x").exists()

    def test_a_prefix_is_not_an_object(self, store: ObjectStore) -> None:
        store.put("folder/x", b"1")
        assert store.head("folder") is None
        with pytest.raises(ObjectMissing):
            store.get("folder")

    def test_put_if_absent_creates_once_and_never_overwrites(self, store: ObjectStore) -> None:
        assert store.put_if_absent("log/0", b"first") is True
        assert store.put_if_absent("log/0", b"second") is False
        assert store.get("log/0") == b"first"
        store.delete("log/0")
        assert store.put_if_absent("log/0", b"third") is True

    def test_put_if_absent_has_one_winner_among_threads(self, store: ObjectStore) -> None:
        with ThreadPoolExecutor(16) as pool:
            for round_ in range(2):
                key = f"race/{round_}"
                won = list(pool.map(lambda n, key=key: store.put_if_absent(key, f"writer {n}".encode()), range(16)))
                assert sum(won) == 1
                assert store.get(key) == f"writer {won.index(True)}".encode()

    def test_head(self, store: ObjectStore) -> None:
        store.put("x", b"12345")
        first = store.head("x")
        assert first is not None
        assert (first.key, first.size) == ("x", 5)
        assert 0 <= first.age_s < 60
        again = store.head("x")
        assert again is not None
        assert again.etag == first.etag
        store.put("x", b"123456")
        changed = store.head("x")
        assert changed is not None
        assert changed.etag != first.etag

    def test_list_is_recursive_sorted_and_by_string_prefix(self, store: ObjectStore) -> None:
        keys = ["p/a/1", "p/a-b", "p/a/2/x", "p/ab", "p/ü", "q/1"]
        for key in keys:
            store.put(key, b"12")
        assert [info.key for info in store.list("")] == sorted(keys)
        assert [info.key for info in store.list("p/")] == sorted(keys)[:-1]
        assert [info.key for info in store.list("p/a")] == ["p/a-b", "p/a/1", "p/a/2/x", "p/ab"]
        assert [info.key for info in store.list("p/a/")] == ["p/a/1", "p/a/2/x"]
        assert [info.key for info in store.list("none/")] == []
        assert {info.size for info in store.list("")} == {2}
        head = store.head("p/ab")
        assert head is not None
        assert next(info for info in store.list("p/ab")).etag == head.etag

    def test_list_dirs(self, store: ObjectStore) -> None:
        for key in ("runs/a/log/0", "runs/b/x", "runs/file", "other/c/d"):
            store.put(key, b"")
        assert store.list_dirs("runs/") == ["a", "b"]
        assert store.list_dirs("runs") == ["a", "b"]
        assert store.list_dirs("") == ["other", "runs"]
        assert store.list_dirs("runs/a") == ["log"]
        assert store.list_dirs("nothing/") == []

    def test_a_folder_ends_with_its_last_object(self, store: ObjectStore) -> None:
        store.put("runs/a/x/y", b"1")
        store.put("runs/b", b"1")
        store.delete("runs/a/x/y")
        assert list(store.list("runs/a")) == []
        assert [info.key for info in store.list("")] == ["runs/b"]

    def test_files_go_up_and_come_down_whole(self, store: ObjectStore, tmp_path: Path) -> None:
        data = os.urandom((40 << 20) + 17)  # more than two parts, and not a multiple of anything
        source, target = tmp_path / "in.bin", tmp_path / "deep" / "er" / "out.bin"
        source.write_bytes(data)
        store.upload(source, "big/file.bin")
        info = store.head("big/file.bin")
        assert info is not None
        assert info.size == len(data)
        assert store.download("big/file.bin", target, hashed=True) == hashlib.sha256(data).hexdigest()
        assert hashlib.sha256(target.read_bytes()).digest() == hashlib.sha256(data).digest()
        assert store.get("big/file.bin", (16 << 20) - 5, 10) == data[(16 << 20) - 5 : (16 << 20) + 5]
        assert [path.name for path in target.parent.iterdir()] == ["out.bin"]

    def test_large_bytes(self, store: ObjectStore) -> None:
        data = os.urandom((33 << 20) + 1)
        store.put("big/bytes", data)
        assert store.get("big/bytes") == data

    def test_empty_file(self, store: ObjectStore, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        store.upload(tmp_path / "empty", "e")
        store.download("e", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b""

    def test_an_upload_that_was_given_up_leaves_nothing(self, store: ObjectStore, tmp_path: Path) -> None:
        (tmp_path / "small").write_bytes(b"1")
        given_up = threading.Event()
        given_up.set()
        with pytest.raises(TransferCancelled):
            store.upload(tmp_path / "small", "k", cancel=given_up)
        assert store.head("k") is None
        assert list(store.unfinished("")) == []

    def test_stream(self, store: ObjectStore) -> None:
        lines = [f"line {n} {'x' * (n % 97)}\n".encode() for n in range(100_000)]
        store.put("lines.gz", gzip.compress(b"".join(lines), 1))
        store.put("plain", b"".join(lines)[: 20 << 20])
        with store.open_stream("lines.gz") as raw, gzip.open(raw) as unpacked:
            assert list(unpacked) == lines
        with store.open_stream("plain") as raw:
            assert raw.read(5) == b"line "
            assert len(raw.read()) == min(sum(map(len, lines)), 20 << 20) - 5

    def test_odd_but_legal_names(self, store: ObjectStore) -> None:
        keys = ["a b/c+d%20e", "q?x=1&y#z", "ünï/码", "dots..dots", "...", "n" * 250]
        for key in keys:
            store.put(key, key.encode())
            assert store.get(key) == key.encode()
        assert sorted(info.key for info in store.list("")) == sorted(keys)

    @pytest.mark.parametrize("key", ["", "/abs", "a//b", "a/", "../x", "a/../b", "a/./b", "a\nb", "n" * 300])
    def test_bad_keys_are_refused_by_every_operation(self, store: ObjectStore, key: str, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"1")
        for act in (
            lambda: store.get(key),
            lambda: store.put(key, b""),
            lambda: store.put_if_absent(key, b""),
            lambda: store.upload(tmp_path / "f", key),
            lambda: store.download(key, tmp_path / "g"),
            lambda: store.head(key),
            lambda: store.delete(key),
            lambda: store.open_stream(key),
        ):
            with pytest.raises(UserError) as caught:
                act()
            assert caught.value.reason == "bad_key"

    def test_upload_of_a_missing_file_names_it(self, store: ObjectStore, tmp_path: Path) -> None:
        with pytest.raises(Exception, match=r"not-here\.bin"):
            store.upload(tmp_path / "not-here.bin", "k")
        assert store.head("k") is None

    def test_pickled_stores_work_and_print_their_address(self, store: ObjectStore) -> None:
        store.put("x", b"1")
        copy = pickle.loads(pickle.dumps(store))
        assert copy.get("x") == b"1"
        assert store.uri in repr(store)

    def test_is_an_object_store(self, store: ObjectStore) -> None:
        assert isinstance(store, ObjectStore)
