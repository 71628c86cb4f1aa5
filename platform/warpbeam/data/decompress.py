"""Unpack .gz and .zst as a stream, and say plainly when a file is truncated or is not what its name says.

Both formats may hold several members (frames) one after the other, as `cat a.gz b.gz` makes them; all are read.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from warpbeam.data.files import READ_BYTES, Compression, missing_extra
from warpbeam.errors import UserError

ZSTD_INPUT_BYTES = 32 << 10
"""Compressed bytes unpacked at once: small, because one call may make thousands of times as many."""
ZSTD_MAX_WINDOW_BYTES = 1 << 31
"""What `zstd --long=31` needs."""


def unpack(stored: BinaryIO, compression: Compression) -> BinaryIO:
    """The unpacked bytes of a stored stream, buffered; its errors are named by `unpacking`."""
    raw: Any = gzip.GzipFile(fileobj=stored, mode="rb") if compression == "gz" else ZstdReader(stored)
    return cast(BinaryIO, io.BufferedReader(raw, READ_BYTES))


@contextmanager
def unpacking(uri: str) -> Iterator[None]:
    """Turn a decoder's complaint into a UserError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, BadZstdFile) as error:
        raise UserError(
            f"{uri} cannot be unpacked",
            why=f"{error}".rstrip(".") or type(error).__name__,
            fix="copy the file again, or rename it if it is not compressed",
            reason="broken_archive",
        ) from error


class BadZstdFile(Exception):
    """Not Zstandard data, damaged, or cut short."""


class ZstdReader(io.RawIOBase):
    """Frames of a .zst file, one after the other.

    The zstandard package's own stream reader takes a truncated frame for the end of the file; this one does not.
    """

    def __init__(self, stored: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise missing_extra("Zstandard") from error
        self._zstandard = zstandard
        self._stored = stored
        self._frame: Any = None
        self._packed = b""
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._unpacked:
            if not self._fill():
                return 0
        count = min(len(buffer), len(self._unpacked))
        buffer[:count] = self._unpacked[:count]
        self._unpacked = self._unpacked[count:]
        return count

    def _fill(self) -> bool:
        """Unpack the next piece; False at the end of the file."""
        packed = self._packed or self._stored.read(ZSTD_INPUT_BYTES)
        self._packed = b""
        if not packed:
            if self._frame is not None:
                raise BadZstdFile("the file ends inside a Zstandard frame: it is truncated")
            return False
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW_BYTES).decompressobj()
        try:
            self._unpacked = memoryview(self._frame.decompress(packed))
        except self._zstandard.ZstdError as error:
            raise BadZstdFile(f"not valid Zstandard data: {error}") from error
        if self._frame.eof:
            self._packed = self._frame.unused_data
            self._frame = None
        return True
