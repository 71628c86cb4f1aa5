"""Lines of a byte range, and the number of the line that a byte is on.

A range owns the lines whose first byte lies in it, so ranges that cover a file share out its lines whatever the cuts
are. A task in the middle of a file does not know how many lines came before: it numbers its own, and the file is
counted only when a line must be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from warpbeam.data.files import READ_BYTES

MAX_LINE_BYTES = 256 << 20
"""A longer line is passed over as a bad record: it would not fit in a worker's memory several times over."""


class Line(NamedTuple):
    """One line without its end."""

    number: int
    """Within the range, from 1."""
    offset: int
    """Of its first byte, in the stream."""
    data: bytes | None
    """None when it was longer than the limit."""
    size: int
    """Bytes, with its end."""


def iter_lines(
    stream: BinaryIO, start: int = 0, end: int | None = None, max_bytes: int = MAX_LINE_BYTES
) -> Iterator[Line]:
    """The lines of `stream` whose first byte is in `[start, end)`.

    Args:
        stream: buffered; positioned at 0, or seekable when `start` is not 0.
        end: None reads to the end of the stream.
        max_bytes: of a longer line only the size is given.
    """
    offset = start
    if start:
        stream.seek(start - 1)
        offset = start - 1 + _skip_line(stream, None if end is None else end - start + 1)
    number = 0
    while end is None or offset < end:
        data: bytes | None = stream.readline(max_bytes + 1)
        if not data:
            return
        size = len(data)
        if size > max_bytes and not data.endswith(b"\n"):
            data = None
            size += _skip_line(stream)
        number += 1
        yield Line(number, offset, data, size)
        offset += size


def line_numbers(stream: BinaryIO, offsets: Sequence[int]) -> list[int]:
    """The numbers, from 1, of the lines that the bytes at ascending `offsets` are on; reads everything before them."""
    numbers = []
    number, at = 1, 0
    for offset in offsets:
        while at < offset:
            data = stream.read(min(offset - at, READ_BYTES))
            if not data:
                break
            number += data.count(b"\n")
            at += len(data)
        numbers.append(number)
    return numbers


def _skip_line(stream: BinaryIO, limit: int | None = None) -> int:
    """Read up to and including the next line end, or `limit` bytes; the number of bytes read."""
    skipped = 0
    while limit is None or skipped < limit:
        data = stream.readline(READ_BYTES if limit is None else min(READ_BYTES, limit - skipped))
        skipped += len(data)
        if not data or data.endswith(b"\n"):
            break
    return skipped
