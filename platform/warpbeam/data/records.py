"""The raw records of a task: JSON objects, Parquet rows or pieces of text, each with its place in the file.

A record that cannot be read is a value (BadRecord), not an exception: what to do about it is the job's decision
(`on_bad_record`). A file that cannot be read at all is a UserError.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from warpbeam.data.decompress import unpack, unpacking
from warpbeam.data.files import SourceFile, open_file, reading
from warpbeam.data.lines import MAX_LINE_BYTES, Line, iter_lines, line_numbers
from warpbeam.data.sources import Task
from warpbeam.data.text import read_pieces, read_range
from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.storage import StorageConfig


class RawRecord(NamedTuple):
    """One record as it is in the file."""

    task_line: int
    """Its line (jsonl) or row (parquet) within the task, from 1. The file's line number is this plus the lines of the
    file's earlier tasks."""
    offset: int
    """Of its first byte in the unpacked file (parquet: its row in the file, from 0)."""
    value: dict[str, Any] | str
    """A string is a text document, or a piece of one."""


class BadRecord(NamedTuple):
    """A record that cannot be used."""

    task_line: int
    offset: int
    reason: str
    """A code: invalid_utf8, nul_byte, broken_json, not_an_object, line_too_long, or one of the formats'."""
    detail: str


class Blank(NamedTuple):
    """A line of white space: no record, but it counts when lines are numbered."""

    task_line: int
    offset: int


class BadRecordError(Exception):
    """What the record at hand is refused for; `iter_examples` turns it into a BadRecord."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def read_records(
    task: Task,
    config: StorageConfig | None,
    *,
    columns: Sequence[str] | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[RawRecord | BadRecord | Blank]:
    """The records of a task in the file's order.

    Args:
        columns: the Parquet columns that are needed; None for all.

    Raises:
        UserError: the file is gone, changed, cannot be unpacked, or is not what its name says.
    """
    file = task.file
    if file.kind == "parquet":
        from warpbeam.data.parquet import iter_rows

        for index, (row, value) in enumerate(iter_rows(file, task.start, task.end, columns, config), 1):
            yield RawRecord(index, row - 1, value)
        return
    with reading(file.uri), unpacking(file.uri), open_file(file, config, end=task.end) as stored:
        stream = unpack(stored, file.compression) if file.compression else stored
        if file.kind == "txt":
            yield from _read_text(stream, task)
        else:
            start, end = (0, None) if file.compression else (task.start, task.end)
            for line in iter_lines(stream, start, end, max_line_bytes):
                yield _parse_line(line, file)


def name_places(file: SourceFile, offsets: Sequence[int], config: StorageConfig | None) -> list[str]:
    """`file:line` of records of one file, for people.

    Reads a jsonl file up to the last of them, so only for the few that are shown.
    """
    if file.kind == "parquet":
        return [f"{file.uri} row {offset + 1}" for offset in offsets]
    if file.kind == "txt":
        return [f"{file.uri} from byte {offset}" if offset else file.uri for offset in offsets]
    with reading(file.uri), unpacking(file.uri), open_file(file, config) as stored:
        stream = unpack(stored, file.compression) if file.compression else stored
        numbers = dict(zip(sorted(offsets), line_numbers(stream, sorted(offsets)), strict=True))
    return [f"{file.uri}:{numbers[offset]}" for offset in offsets]


def _parse_line(line: Line, file: SourceFile) -> RawRecord | BadRecord | Blank:
    data = line.data
    if data is None:
        return BadRecord(line.number, line.offset, "line_too_long", f"the line has {line.size} bytes")
    refuse_disguise(data, file, first=line.offset == 0)
    data = data.removeprefix(codecs.BOM_UTF8)  # of the file, or of one that was appended to it
    if not data.strip():
        return Blank(line.number, line.offset)
    try:
        return RawRecord(line.number, line.offset, parse_object(data))
    except BadRecordError as bad:
        return BadRecord(line.number, line.offset, bad.reason, bad.detail)


def parse_object(data: bytes) -> dict[str, Any]:
    """One line of JSON Lines.

    Raises:
        BadRecordError: it is not one JSON object in UTF-8.
    """
    if b"\0" in data:
        raise BadRecordError("nul_byte", f"a NUL byte at byte {data.index(0) + 1} of the line")
    try:
        text = data.decode().rstrip()  # an error at the line's end is then in its last column, not on the next line
    except UnicodeDecodeError as error:
        raise BadRecordError("invalid_utf8", f"{error.reason} at byte {error.start + 1} of the line") from error
    try:
        value = json.loads(text)
        if "\\u" in text:
            # A lone surrogate is legal in JSON and in no text: tokenizers cannot encode it.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadRecordError("invalid_utf8", "half of a surrogate pair, which is no character") from error
    except json.JSONDecodeError as error:
        rule = "each line must be one whole JSON object"
        if text.strip() in ("{", "["):  # the first line of something that is written over several
            rule += "; jq -c . FILE > NEW.jsonl writes them so"
        detail = f"{error.msg} at column {error.colno} ({rule})"
        raise BadRecordError("broken_json", detail) from error
    except RecursionError as error:
        raise BadRecordError("broken_json", "nested too deeply") from error
    except ValueError as error:  # a number with thousands of digits
        raise BadRecordError("broken_json", f"{error}") from error
    if not isinstance(value, dict):
        raise BadRecordError("not_an_object", f"a JSON {_json_type(value)} where an object {{...}} is expected")
    return value


def _json_type(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names[type(value)]


MAGIC_BYTES = 16
_MAGIC = {
    b"\x1f\x8b": ("gzip", "give it a name that ends in .gz"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "give it a name that ends in .zst"),
    b"PAR1": ("Parquet", "give it a name that ends in .parquet"),
    b"\xff\xfe": ("UTF-16", "save it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW"),
    b"\xfe\xff": ("UTF-16", "save it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW"),
}


def refuse_disguise(line: bytes, file: SourceFile, *, first: bool) -> None:
    """Raise UserError for a file that is wholly something else than its name says: no line of it can be right.

    Args:
        line: an unpacked line, or the beginning of a text.
        first: it is the file's first.
    """
    text = line.removeprefix(codecs.BOM_UTF8).strip()
    if first:
        _refuse_magic(line, file)
    array = rb"\[" if re.search(r"\.json(\.gz|\.zst)?$", file.uri.lower()) else rb"\[\s*(\{|$)" if first else None
    if file.kind == "jsonl" and array and re.match(array, text):
        raise UserError(
            f"{file.uri} holds one JSON array, not one object a line",
            why="only JSON Lines can be read in parallel and in bounded memory",
            fix="jq -c '.[]' FILE > FILE.jsonl, and name that file",
            reason="json_array",
        )


def _refuse_magic(beginning: bytes, file: SourceFile) -> None:
    for magic, (what, fix) in _MAGIC.items():
        if beginning.startswith(magic) and (file.kind == "jsonl" or magic != b"PAR1"):  # a text may begin with it
            why = f"its first bytes are those of {what}, its name says {file.kind}"
            raise UserError(f"{file.uri} is a {what} file", why=why, fix=fix, reason="wrong_file_type")


def _read_text(stream: BinaryIO, task: Task) -> Iterator[RawRecord | BadRecord]:
    pieces = read_pieces(stream) if task.file.compression else [read_range(stream, task.start, task.end)]
    for number, (offset, data) in enumerate(pieces, 1):
        refuse_disguise(data[:MAGIC_BYTES], task.file, first=offset == 0)
        try:
            if b"\0" in data:
                raise BadRecordError("nul_byte", f"a NUL byte at byte {offset + data.index(0) + 1}")
            yield RawRecord(number, offset, data.decode())
        except UnicodeDecodeError as error:
            detail = f"{error.reason} at byte {offset + error.start + 1}"
            yield BadRecord(number, offset, "invalid_utf8", detail)
        except BadRecordError as bad:
            yield BadRecord(number, offset, bad.reason, bad.detail)
