"""Open a source file, wherever it is, as one seekable stream of bytes.

Local files are read directly; objects by ranged GETs, each of which the store retries by itself, so that a reader of
one byte range of a large object fetches little else. A file that is no longer the one that was listed is refused:
what was prepared from it would not be what its fingerprint says.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.storage import ObjectStore, StorageConfig

Kind = Literal["jsonl", "parquet", "txt"]
Compression = Literal["gz", "zst"]

KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "txt",
}
COMPRESSIONS: dict[str, Compression] = {".gz": "gz", ".zst": "zst"}
READABLE = ".jsonl, .ndjson, .json (one object a line), .txt, each also with .gz or .zst; .parquet"

READ_BYTES = 1 << 20
"""How much a stream asks of a local file at once."""
GET_BYTES = 8 << 20
"""And of an object: more than a usual task, which so costs one request."""
TAIL_BYTES = 64 << 10
"""First read past the range that the reader announced: enough for the rest of a usual line."""


@dataclass(frozen=True)
class SourceFile:
    """One file of a data source as it was when listed."""

    uri: str
    """`s3://bucket/key`, or the absolute path of a local file."""
    size: int
    """Bytes, as stored (compressed)."""
    stamp: str
    """Changes when the content does: an object's ETag, or a local file's modification time and size."""
    compression: Compression | None
    kind: Kind


def kind_of(name: str) -> tuple[Kind, Compression | None] | None:
    """What a file's name says about how to read it; None when it is nothing that we read."""
    stem, suffix = os.path.splitext(name.lower())
    compression = COMPRESSIONS.get(suffix)
    if compression:
        suffix = os.path.splitext(stem)[1]
    kind = KINDS.get(suffix)
    if kind is None or (compression and kind == "parquet"):
        return None
    return kind, compression


def missing_extra(what: str) -> UserError:
    """The light core reads plain and gzipped files; the rest comes with the training extra."""
    return UserError(
        f"{what} files cannot be read here",
        why="the package for them is not installed",
        fix="pip install 'warpbeam[train]'",
        reason="missing_extra",
    )


def local_stamp(stat: os.stat_result) -> str:
    """The stamp of a local file."""
    return f"{stat.st_mtime_ns:x}-{stat.st_size:x}"


def open_file(
    file: SourceFile, config: StorageConfig | None, *, end: int | None = None, get_bytes: int = GET_BYTES
) -> BinaryIO:
    """The file's stored bytes from the beginning, buffered and seekable.

    Args:
        end: where the reader means to stop; it may read on, in small steps (objects only).
        get_bytes: how much is fetched of an object at once, at least.

    Raises:
        UserError: it is gone, may not be read, or has changed since it was listed.
    """
    if file.uri.startswith("s3://"):
        raw = _open_object(file, config, file.size if end is None else end)
        return cast(BinaryIO, io.BufferedReader(raw, get_bytes))
    return cast(BinaryIO, io.BufferedReader(_open_local(file), READ_BYTES))


def read_text_file(path: Path) -> str:
    """A small UTF-8 text file that the user named, such as a chat template."""
    with reading(str(path)):
        try:
            return path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text", why=str(error), reason="invalid_utf8") from error


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Turn the operating system's refusals about one file into errors that name it."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"there is no {uri}", reason="missing_file") from error
    except PermissionError as error:
        raise UserError(f"{uri} may not be read", why=str(error.strerror), reason="not_readable") from error
    except OSError as error:
        raise UserError(f"{uri} cannot be read", why=str(error), reason="not_readable") from error


class RangeReader(io.RawIOBase):
    """An object as a raw seekable file: each read is one ranged GET.

    Up to `end` it fetches what is asked for; past it in steps that begin at TAIL_BYTES and double, because a reader of
    a range only needs the rest of its last line from there.
    """

    def __init__(self, store: ObjectStore, key: str, size: int, end: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._end = min(end, size)
        self._tail = TAIL_BYTES
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._size - self._position)
        if self._position < self._end:
            wanted = min(wanted, self._end - self._position)
        elif wanted > self._tail:
            wanted = self._tail
            self._tail *= 2
        if wanted <= 0:
            return 0
        data = self._store.get(self._key, self._position, wanted)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def _open_local(file: SourceFile) -> io.RawIOBase:
    with reading(file.uri):
        raw = open(file.uri, "rb", buffering=0)  # noqa: SIM115 - the caller closes it
        if local_stamp(os.fstat(raw.fileno())) != file.stamp:
            raw.close()
            raise _changed(file.uri)
    return raw


def _open_object(file: SourceFile, config: StorageConfig | None, end: int) -> io.RawIOBase:
    from warpbeam.storage import open_uri

    store, key = open_uri(file.uri, config)
    info = store.head(key)
    if info is None:
        raise UserError(f"there is no {file.uri}", reason="missing_file")
    if info.etag != file.stamp or info.size != file.size:
        raise _changed(file.uri)
    return RangeReader(store, key, file.size, end)


def _changed(uri: str) -> UserError:
    return UserError(
        f"{uri} changed after it was listed",
        why="its rows would not be what the data set's fingerprint says",
        fix="run again when nothing writes to it any more",
        reason="source_changed",
    )
