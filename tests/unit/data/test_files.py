"""Opening files: ranges of objects, changed files, packed files, and long text in pieces."""

from __future__ import annotations

import gzip
import io
import re
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.data.decompress import unpack, unpacking
from warpbeam.data.files import TAIL_BYTES, RangeReader, SourceFile, kind_of, local_stamp, open_file
from warpbeam.data.text import LOOKAHEAD, cut_text, read_pieces, read_range
from warpbeam.errors import UserError


class OneObject:
    """A store that holds one object and remembers what was asked of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        assert length is not None
        self.asked.append((start, length))
        return self.data[start : start + length]


def reader(data: bytes, end: int) -> tuple[OneObject, io.BufferedReader]:
    store = OneObject(data)
    return store, io.BufferedReader(RangeReader(store, "key", len(data), end), 1 << 20)  # type: ignore[arg-type]


@given(data=st.binary(max_size=200), end=st.integers(0, 200), seek=st.integers(0, 250))
def test_an_object_reads_like_a_file(data: bytes, end: int, seek: int) -> None:
    _, stream = reader(data, end)
    stream.seek(seek)
    assert stream.read() == data[seek:]
    stream.seek(-min(len(data), 3), io.SEEK_END)
    assert stream.read() == data[len(data) - min(len(data), 3) :]


def test_little_is_fetched_past_the_announced_end() -> None:
    store, stream = reader(b"x" * (3 << 20), 1 << 20)
    stream.read(1 << 20)
    stream.read(10)
    assert store.asked == [(0, 1 << 20), (1 << 20, TAIL_BYTES)]


def source(path: Path, kind: str = "jsonl", compression: str | None = None) -> SourceFile:
    stat = path.stat()
    return SourceFile(str(path), stat.st_size, local_stamp(stat), compression, kind)  # type: ignore[arg-type]


def test_a_file_that_changed_or_went_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    listed = source(path)
    with open_file(listed, None) as stream:
        assert stream.read() == b"{}\n"
    path.write_text('{"x": 1}\n')
    with pytest.raises(UserError, match="changed after it was listed"):
        open_file(listed, None)
    path.unlink()
    with pytest.raises(UserError, match="there is no") as caught:
        open_file(listed, None)
    assert caught.value.reason == "missing_file"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", ("jsonl", None)),
        ("A.JSON.GZ", ("jsonl", "gz")),
        ("a.b.ndjson.zst", ("jsonl", "zst")),
        ("a.parquet", ("parquet", None)),
        ("a.txt.zst", ("txt", "zst")),
        ("a.parquet.gz", None),
        ("a.gz", None),
        ("jsonl", None),
        ("a.csv", None),
    ],
)
def test_names_say_how_to_read(name: str, kind: tuple[str, str | None] | None) -> None:
    assert kind_of(name) == kind


CONTENT = b"line one\nline two\n" * 5000
HALVES = (CONTENT[:40_000], CONTENT[40_000:])


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


SKIPPABLE = bytes([0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0]) + b"note"


@pytest.mark.parametrize(
    ("compression", "stored", "content"),
    [
        ("gz", gzip.compress(CONTENT, mtime=0), CONTENT),
        ("gz", gzip.compress(HALVES[0], mtime=0) + gzip.compress(HALVES[1], mtime=0), CONTENT),
        ("gz", gzip.compress(b"", mtime=0), b""),
        ("zst", zst(CONTENT), CONTENT),
        ("zst", zst(HALVES[0]) + zst(HALVES[1]), CONTENT),
        ("zst", SKIPPABLE + zst(CONTENT) + SKIPPABLE, CONTENT),
        ("zst", zst(b""), b""),
        ("zst", b"", b""),
        ("gz", b"", b""),
    ],
)
def test_packed_files(compression: str, stored: bytes, content: bytes) -> None:
    assert unpack(io.BytesIO(stored), compression).read() == content  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("compression", "stored", "why"),
    [
        ("gz", gzip.compress(CONTENT, mtime=0)[:-100], "end-of-stream"),
        ("gz", gzip.compress(CONTENT, mtime=0)[:12], "end-of-stream"),
        ("gz", b'{"text": "plain"}\n', "Not a gzipped file"),
        ("gz", gzip.compress(CONTENT, mtime=0)[:-6] + b"\0" * 6, "CRC|length"),
        ("zst", zst(CONTENT)[:-10], "truncated"),
        ("zst", zst(CONTENT)[:3], "truncated"),
        ("zst", b'{"text": "plain"}\n', "not valid Zstandard"),
        ("zst", zst(CONTENT) + b"trailing text", "not valid Zstandard"),
    ],
)
def test_broken_packed_files_are_named_with_the_reason(compression: str, stored: bytes, why: str) -> None:
    with pytest.raises(UserError, match="some-file cannot be unpacked") as caught, unpacking("some-file"):
        unpack(io.BytesIO(stored), compression).read()  # type: ignore[arg-type]
    assert caught.value.reason == "broken_archive"
    assert re.search(why, caught.value.why)


TEXTS = st.text(st.sampled_from("ab é🙂\n\t"), max_size=300)


@given(text=TEXTS, size=st.integers(1, 50))
def test_a_cut_text_joins_to_itself(text: str, size: int) -> None:
    pieces = list(cut_text(text, size))
    assert "".join(pieces) == text
    for index, piece in enumerate(pieces[1:], 1):
        assert piece[0] in " \n\t" or not any(white in "".join(pieces[index:]) for white in " \n\t")


def test_text_without_white_space_is_cut_inside() -> None:
    assert [len(piece) for piece in cut_text("x" * 250_000, 100_000)] == [100_000, 100_000, 50_000]


@given(text=TEXTS, cuts=st.lists(st.integers(0, 700), max_size=5))
def test_ranges_of_a_text_cover_it(text: str, cuts: list[int]) -> None:
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [read_range(io.BytesIO(data), a, b) for a, b in pairwise(edges)]
    assert b"".join(piece.data for piece in pieces) == data
    assert "".join(piece.data.decode() for piece in pieces) == text


def test_a_packed_text_is_cut_at_white_space() -> None:
    data = ("wörd " * 40_000).encode()
    pieces = list(read_pieces(io.BytesIO(data), 50_000))
    assert b"".join(piece.data for piece in pieces) == data
    assert len(pieces) == 4
    assert [piece.offset for piece in pieces] == [0, *(sum(len(p.data) for p in pieces[:i]) for i in range(1, 4))]
    assert all(piece.data.startswith(b" ") for piece in pieces[1:])


def test_long_words_are_cut_between_characters() -> None:
    data = ("é" * LOOKAHEAD).encode()
    pieces = [read_range(io.BytesIO(data), 0, 7), read_range(io.BytesIO(data), 7, len(data))]
    assert [len(piece.data) for piece in pieces] == [8, len(data) - 8]


def test_a_byte_order_mark_is_not_text() -> None:
    assert read_range(io.BytesIO(b"\xef\xbb\xbfhello"), 0, 8).data == b"hello"
    assert next(read_pieces(io.BytesIO(b"\xef\xbb\xbfhello"))).data == b"hello"
