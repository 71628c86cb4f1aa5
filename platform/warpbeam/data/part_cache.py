"""Parts on a node's disk: fetched whole, once for all ranks of the node, checked, memory-mapped.

A file is named by its content's sha256 and appears by rename only after the check, so ranks, runs and data sets may
share one folder without talking. It is checked again when a process maps it first: a torn or rotten copy is fetched
anew. The least recently used files go when the folder passes its limit; a mapped file that goes stays readable until it
is unmapped.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warpbeam.errors import PlatformError
from warpbeam.storage.disk import disk_errors
from warpbeam.storage.store import ObjectStore

DEFAULT_LIMIT_BYTES = 4 << 30
_LOCKS = 64
_MAPPED_PARTS = 256
"""Each holds a file descriptor."""
_ARRIVES_WITHIN_S = 3600
"""A half-written file older than this was left by a process that was killed."""


class PartCache:
    """Memory-mapped parts of one store, by way of a folder that the node's processes share."""

    def __init__(self, store: ObjectStore, folder: Path, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._store = store
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._mapped: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()
        self._mapped_lock = threading.Lock()
        self._checked: set[str] = set()
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def open(self, key: str, sha256: str) -> NDArray[np.uint8]:
        """The bytes of a part.

        Raises:
            PlatformError: the object in the store is not what its seal says.
            InfraError: the disk is full.
        """
        with self._mapped_lock:
            if sha256 in self._mapped:
                self._mapped.move_to_end(sha256)
                return self._mapped[sha256]
        part = self._map(self._path(sha256), sha256)
        if part is None:
            part = self._fetch(key, sha256)
        with self._mapped_lock:
            self._mapped[sha256] = part
            while len(self._mapped) > _MAPPED_PARTS:
                self._mapped.popitem(last=False)
        return part

    def fetch(self, key: str, sha256: str) -> None:
        """See to it that the part is on this node's disk; of several processes, one fetches and the others wait."""
        if not self._path(sha256).exists():
            self._fetch(key, sha256)

    def _fetch(self, key: str, sha256: str) -> NDArray[np.uint8]:
        """The part, mapped before anybody could evict it: a limit below a window's size costs time, never a part."""
        path = self._path(sha256)
        with disk_errors(path), self._lock(int(sha256[:8], 16) % _LOCKS):
            part = self._map(path, sha256)  # another process was faster
            if part is None:  # not there, or rotten on this disk
                part = self._download(key, sha256, path)
                self._evict(keep=path)
        return part

    def _download(self, key: str, sha256: str, path: Path) -> NDArray[np.uint8]:
        arriving = path.with_suffix(".arriving")
        self._store.download(key, arriving)
        part = self._map(arriving, sha256)
        if part is None:
            arriving.unlink()
            raise PlatformError(
                f"{self._store.uri}/{key} is not the part that its seal describes",
                why=f"the seal says sha256 {sha256[:12]}…, its bytes have another",
                fix="delete this data prefix and prepare the data again",
                reason="corrupt_part",
            )
        arriving.replace(path)
        return part

    def _path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.bin"

    def _map(self, path: Path, sha256: str) -> NDArray[np.uint8] | None:
        """The file's bytes, checked once by each process; None when it is gone or wrong."""
        try:
            part = np.memmap(path, np.uint8, mode="r")
            os.utime(path)  # the clock of "least recently used"
        except (FileNotFoundError, ValueError):  # gone, or empty: np.memmap refuses
            return None
        if sha256 not in self._checked:
            if hashlib.sha256(part.data).hexdigest() != sha256:
                return None
            self._checked.add(sha256)
        return part

    def _evict(self, keep: Path) -> None:
        with self._lock(_LOCKS):
            files = []
            for entry in os.scandir(self._folder):
                with contextlib.suppress(FileNotFoundError):  # another process's download was renamed meanwhile
                    stat = entry.stat()
                    arriving = not entry.name.endswith(".bin") and time.time() - stat.st_mtime < _ARRIVES_WITHIN_S
                    if not arriving and not entry.name.endswith(".lock"):
                        files.append((stat.st_mtime, stat.st_size, entry.path))
            held = sum(size for _, size, _ in files)
            for _, size, path in sorted(files):
                if held <= self._limit_bytes:
                    break
                if path != str(keep):
                    Path(path).unlink(missing_ok=True)
                    held -= size

    @contextlib.contextmanager
    def _lock(self, number: int) -> Iterator[None]:
        with open(self._folder / f"{number}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
