"""A store in a dictionary, with the store's own clock, that tests can interrupt at any operation."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from warpbeam.storage.bandwidth import Bandwidth
from warpbeam.storage.store import ObjectInfo, ObjectMissing, TransferCancelled, Unfinished


class MemoryStore:
    """`before` and `after` see (operation, key) around each write and may raise: before it happened, or after."""

    uri = "memory://"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.written_at: dict[str, float] = {}
        self.now = 0.0
        self.calls: list[tuple[str, str]] = []
        self.left: list[Unfinished] = []
        self.limits: list[Bandwidth | None] = []
        self.before: Callable[[str, str], None] = lambda operation, key: None
        self.after: Callable[[str, str], None] = lambda operation, key: None

    def _write(self, operation: str, key: str, data: bytes) -> None:
        self.calls.append((operation, key))
        self.before(operation, key)
        self.objects[key] = data
        self.written_at[key] = self.now
        self.after(operation, key)

    def put(self, key: str, data: bytes) -> None:
        self._write("put", key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self._write("put_if_absent", key, data)
        return True

    def upload(
        self, path: Path, key: str, *, limit: Bandwidth | None = None, cancel: threading.Event | None = None
    ) -> None:
        self.limits.append(limit)
        self._write("upload", key, path.read_bytes())
        if cancel is not None and cancel.is_set():
            del self.objects[key]
            raise TransferCancelled(f"{key} was given up")

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.calls.append(("get", key))
        if key not in self.objects:
            raise ObjectMissing(f"there is no {key}")
        return self.objects[key][start : None if length is None else start + length]

    def download(self, key: str, path: Path, *, hashed: bool = False) -> str:
        self.calls.append(("download", key))
        path.write_bytes(self.get(key))
        return hashlib.sha256(self.objects[key]).hexdigest() if hashed else ""

    def head(self, key: str) -> ObjectInfo | None:
        return self._info(key) if key in self.objects else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter([self._info(key) for key in sorted(self.objects) if key.startswith(prefix)])

    def list_dirs(self, prefix: str) -> list[str]:
        folder = prefix.removesuffix("/") + "/"
        rest = (key.removeprefix(folder) for key in self.objects if key.startswith(folder))
        return sorted({name.split("/")[0] for name in rest if "/" in name})

    def delete(self, key: str) -> None:
        self.calls.append(("delete", key))
        self.before("delete", key)
        self.objects.pop(key, None)
        self.after("delete", key)

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        folder = prefix.removesuffix("/") + "/"
        return iter([left for left in self.left if left.key.startswith(folder)])

    def discard(self, left: Unfinished) -> None:
        self.left.remove(left)

    def open_stream(self, key: str) -> BinaryIO:
        return io.BytesIO(self.get(key))

    def _info(self, key: str) -> ObjectInfo:
        data = self.objects[key]
        etag = hashlib.md5(data).hexdigest()
        return ObjectInfo(key, len(data), etag, self.now - self.written_at.get(key, self.now))
