"""One append-only stream of bytes in an object store: numbered objects, of which only the last still grows.

Object stores cannot append. Writing a new object every two seconds would leave 40,000 objects a day, so the newest
object is written again, longer, until it reaches `CHUNK_BYTES`; a reader remembers (object, offset) and fetches only
what is new. Nothing already readable ever changes.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore

CHUNK_BYTES = 64 * 1024
PUT_BYTES = 4 * 1024 * 1024
PENDING_BYTES = 8 * 1024 * 1024


def chunk_key(prefix: str, number: int, suffix: str) -> str:
    """Key of the stream's n-th object."""
    return f"{prefix}/{number:06d}.{suffix}"


class StreamWriter:
    """The writing end. `append` never waits for the network; `flush` runs on the one thread that may.

    Memory is bounded: beyond `pending_bytes` the oldest unsent pieces are given up and a counted notice takes their
    place.
    """

    def __init__(
        self, store: ObjectStore, prefix: str, suffix: str, *, pending_bytes: int = PENDING_BYTES, first: int = 0
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._suffix = suffix
        self._limit = pending_bytes
        self._lock = threading.Lock()
        self._pending: deque[bytes] = deque()
        self._pending_size = 0
        self._open = b""
        self._number = first
        self.dropped = 0

    def append(self, piece: bytes) -> None:
        """Queue one piece (a whole line of JSON)."""
        with self._lock:
            self._pending.append(piece)
            self._pending_size += len(piece)
            while self._pending_size > self._limit and len(self._pending) > 1:
                self._pending_size -= len(self._pending.popleft())
                self.dropped += 1

    def flush(self) -> None:
        """Send everything queued; on an error the unsent stays queued and the error is the caller's."""
        while True:
            with self._lock:
                batch = self._take()
            if not batch:
                return
            try:
                self._put(batch)
            except BaseException:
                with self._lock:
                    self._pending.appendleft(batch)
                    self._pending_size += len(batch)
                raise

    def _take(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while self._pending and (not pieces or size + len(self._pending[0]) <= PUT_BYTES):
            piece = self._pending.popleft()
            size += len(piece)
            pieces.append(piece)
        self._pending_size -= size
        return b"".join(pieces)

    def _put(self, batch: bytes) -> None:
        if self._open and len(self._open) + len(batch) > CHUNK_BYTES:
            self._open = b""
            self._number += 1
        content = self._open + batch
        self._store.put(chunk_key(self._prefix, self._number, self._suffix), content)
        self._open = content


class StreamReader:
    """The reading end: `read` returns what appeared since the last call.

    Args:
        since_s: the first call passes over objects that nobody has written to for longer, by the store's clock.
    """

    def __init__(self, store: ObjectStore, prefix: str, since_s: float | None = None) -> None:
        self._store = store
        self._prefix = prefix
        self._since_s = since_s
        self._seen: dict[str, int] = {}

    def read(self) -> dict[str, bytes]:
        """New bytes by sub-stream: the key's part between the prefix and the object's number ("" if there is none).

        When the store fails in the middle, nothing counts as read.
        """
        fresh: dict[str, bytes] = {}
        seen: dict[str, int] = {}
        for info in self._store.list(f"{self._prefix}/"):
            offset = self._seen.get(info.key, 0)
            if info.size <= offset:
                continue
            if self._since_s is not None and info.age_s > self._since_s:
                seen[info.key] = info.size
                continue
            data = self._store.get(info.key, offset, info.size - offset)
            seen[info.key] = offset + len(data)
            name = info.key.removeprefix(f"{self._prefix}/").rpartition("/")[0]
            fresh[name] = fresh.get(name, b"") + data
        self._seen.update(seen)
        self._since_s = None  # what comes from now on is new
        return fresh
