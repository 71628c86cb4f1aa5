"""The one interface that everything above uses to keep bytes: objects under string keys, written whole.

Checkpoints, prepared data, records and models all go through it, so that a laptop's folder, the embedded server and a
cloud bucket differ in nothing that a caller can see. Only what every S3-like server offers is in it (facts: ListV2 as
an unordered set, strong read-after-write, create-if-absent).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple, Protocol, runtime_checkable

from warpbeam.errors import PlatformError, WarpbeamError
from warpbeam.storage.bandwidth import Bandwidth

Names = list[str]  # inside a store, `list` is the method


class ObjectInfo(NamedTuple):
    """What a store knows about an object without reading it."""

    key: str
    size: int
    """Bytes."""
    etag: str
    """Changes whenever the content does; compare for equality only (it is not an MD5)."""
    age_s: float
    """Seconds since the last write, by the store's own clock, never by ours."""


class Unfinished(NamedTuple):
    """A write that never became an object: parts of an upload, or a temporary file."""

    key: str
    """What it would have been, or where it lies."""
    id: str
    """The store's own name for it."""
    age_s: float
    """Seconds since it was begun, by the store's own clock."""


class ObjectMissing(WarpbeamError):
    """There is no object under this key."""

    default_reason: ClassVar[str] = "object_missing"


class TransferCancelled(WarpbeamError):
    """Who asked for an upload gave it up; nothing of it is left in the store."""

    default_reason: ClassVar[str] = "transfer_cancelled"


class StoreSetupError(PlatformError):
    """The store refuses us, or cannot do what we need, before anything was spent: credentials, bucket, endpoint.

    The pool names the store, so its owner is `platform`; for a script it is bad input (exit 2).
    """

    exit_code: ClassVar[int] = 2
    default_reason: ClassVar[str] = "store_setup"


@runtime_checkable
class ObjectStore(Protocol):
    """Objects below one prefix. Keys are relative to it, separated by `/`, and checked (see keys.py).

    Instances are safe to share between threads, survive pickling and forking, and hold no secret.
    """

    uri: str
    """Where the prefix is: `s3://bucket/prefix` or `file:///folder`."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes `[start, start + length)`, cut at the object's end like a slice: fewer, or none, past the end.

        Raises:
            ObjectMissing: there is no such object.
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write the whole object; readers see the old one or the new one, never a part."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the object; True when this call created it.

        False means that something is there. After a lost response it may be what this very call wrote, since clients
        retry by themselves: whoever must know reads it back and compares a nonce.
        """
        ...

    def upload(
        self, path: Path, key: str, *, limit: Bandwidth | None = None, cancel: threading.Event | None = None
    ) -> None:
        """Store a file of any size in bounded memory (some tens of MiB); the stored size is verified.

        Args:
            limit: how fast at most; uploads that share it stay below it together.
            cancel: looked at between parts; once set, the upload is given up.

        Raises:
            TransferCancelled: `cancel` was set.
            InfraError: the file changed its size meanwhile, or another size was stored (`size_mismatch`).
        """
        ...

    def download(self, key: str, path: Path, *, hashed: bool = False) -> str:
        """Fetch into a file that appears whole or not at all, in bounded memory; missing folders are made.

        Returns its sha256 in hex when `hashed`, taken on the way, else an empty string.

        Raises:
            ObjectMissing: there is no such object.
            InfraError: it changed meanwhile (`object_changed`).
        """
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """What is known about the object, or None when there is none."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key begins with `prefix` (a string, not a folder), sorted by key."""
        ...

    def list_dirs(self, prefix: str) -> Names:
        """Names one level below the folder `prefix` that have objects below them, sorted, without the slash."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; no error when there is none."""
        ...

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        """Writes below the folder `prefix` that have not ended, dead or alive: `upload`s, and large `put`s."""
        ...

    def discard(self, left: Unfinished) -> None:
        """Remove what such a write has left; a writer that still lives gets an error."""
        ...

    def open_stream(self, key: str) -> BinaryIO:
        """Sequential reader in bounded memory, for what is unpacked while it is read (.gz, .zst).

        Raises:
            ObjectMissing: there is no such object.
        """
        ...
