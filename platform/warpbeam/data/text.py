"""Long text in pieces, cut at white space, so that memory stays bounded however long a document is.

Where a cut falls depends on the text alone. A plain file's pieces are its tasks' byte ranges, moved on to the next
white space; a packed file is cut the same way while it is unpacked.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

PIECE_BYTES = 4 << 20
"""Size of a packed document's pieces, as stored in one record."""
PIECE_CHARS = 1 << 20
"""Longest text that is tokenised at once."""
LOOKAHEAD = 64 << 10
"""How far past its size a piece looks for white space to end at; then it is cut inside a word."""

_WHITE_BYTES = re.compile(rb"[ \t\r\n]")
_WHITE_CHARS = re.compile(r"[ \t\r\n]")


class Piece(NamedTuple):
    """Bytes of a document, cut between characters."""

    offset: int
    data: bytes


def read_range(stream: BinaryIO, start: int, end: int) -> Piece:
    """The piece of a seekable document that belongs to the byte range `[start, end)`."""
    size = stream.seek(0, os.SEEK_END)
    first, last = _edge(stream, start, size), _edge(stream, end, size)
    stream.seek(first)
    return Piece(first, _without_bom(first, stream.read(last - first)))


def read_pieces(stream: BinaryIO, piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """The pieces of a document that can only be read from its beginning."""
    offset, data = 0, b""
    while True:
        data += stream.read(piece_bytes + LOOKAHEAD - len(data))
        if not data:
            return
        cut = len(data) if len(data) < piece_bytes + LOOKAHEAD else piece_bytes + _cut(data[piece_bytes:])
        yield Piece(offset, _without_bom(offset, data[:cut]))
        offset += cut
        data = data[cut:]


def cut_text(text: str, piece_chars: int = PIECE_CHARS) -> Iterator[str]:
    """A text in pieces of about `piece_chars`; joined they are the text again."""
    start = 0
    while len(text) - start > piece_chars:
        end = start + piece_chars
        white = _WHITE_CHARS.search(text, end, end + LOOKAHEAD)
        end = white.start() if white else end
        yield text[start:end]
        start = end
    yield text[start:]


def _edge(stream: BinaryIO, position: int, size: int) -> int:
    """Where the cut that was asked for at `position` really is."""
    if position <= 0 or position >= size:
        return min(max(position, 0), size)
    stream.seek(position)
    return min(position + _cut(stream.read(LOOKAHEAD)), size)


def _cut(data: bytes) -> int:
    """The first white space, or else the first byte that begins a character."""
    white = _WHITE_BYTES.search(data, 0, LOOKAHEAD)
    if white:
        return white.start()
    return next((index for index, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


def _without_bom(offset: int, data: bytes) -> bytes:
    return data.removeprefix(codecs.BOM_UTF8) if offset == 0 else data
