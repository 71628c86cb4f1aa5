"""Records keep their place and their number however a file is cut, packed or damaged."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from warpbeam.data.records import BadRecord, Blank, RawRecord, name_places, read_records
from warpbeam.data.sources import cut_tasks, expand
from warpbeam.errors import UserError


def read(path: Path, task_bytes: int = 1 << 22, **options: Any) -> list[tuple[str, Any]]:
    """(`file:line`, value or reason) of everything but blank lines, over all tasks."""
    out: list[tuple[str, Any]] = []
    before = 0
    for task in cut_tasks(expand(str(path), path.parent, None).files, task_bytes):
        lines = 0
        for record in read_records(task, None, **options):
            lines = record.task_line
            if isinstance(record, Blank):
                continue
            place = f"{path.name}:{before + record.task_line}"
            out.append((place, record.value if isinstance(record, RawRecord) else record.reason))
        before += lines
    return out


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


LINE = st.one_of(
    st.builds(lambda text: json.dumps({"text": text}).encode(), st.text(max_size=40)),
    st.sampled_from([b"", b"  ", b"{]", b"[1]", b"\xff{}", b'{"a": "\0"}']),
)


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(LINE, min_size=1, max_size=12),
    end=st.sampled_from([b"\n", b"\r\n"]),
    last=st.booleans(),
    task_bytes=st.integers(1, 200),
)
def test_any_cut_gives_the_same_records_with_the_same_numbers(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], end: bytes, last: bool, task_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    data = end.join(lines) + (end if last else b"") or b"\n"
    path = write(folder / "a.jsonl", data)
    whole = read(path, 1 << 20)
    assert read(path, task_bytes) == whole
    packed = write(folder / "b.jsonl.gz", gzip.compress(data))
    assert [value for _, value in read(packed)] == [value for _, value in whole]
    good = [f"a.jsonl:{number}" for number, line in enumerate(lines, 1) if line.startswith(b'{"text')]
    assert [place for place, value in whole if isinstance(value, dict)] == good


@settings(max_examples=40, deadline=None)
@given(lines=st.lists(LINE, min_size=1, max_size=12), task_bytes=st.integers(1, 100))
def test_places_are_named_as_an_editor_would(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], task_bytes: int
) -> None:
    path = write(tmp_path_factory.mktemp("named") / "a.jsonl", b"\n".join(lines) or b"\n")
    tasks = cut_tasks(expand(str(path), path.parent, None).files, task_bytes)
    records = [r for task in tasks for r in read_records(task, None) if not isinstance(r, Blank)]
    expected = [f"{path}:{number}" for number, line in enumerate(lines, 1) if line.strip()]
    assert name_places(tasks[0].file, [record.offset for record in records], None) == expected


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b'{"a": "b\0"}', "nul_byte", "byte 9"),
        (b'{"a": "\xff"}', "invalid_utf8", "byte 8"),
        (b'{"a": 1', "broken_json", "delimiter"),
        (b'{"a": 1} {"b": 2}', "broken_json", "Extra data"),
        (b"[" * 100_000, "broken_json", "nested|recursion"),
        (b'{"a": ' + b"1" * 5000 + b"}", "broken_json", "digits"),
        (b'{"a": "\\ud83d"}', "invalid_utf8", "surrogate"),
        (b'["a"]', "not_an_object", "array"),
        (b"null", "not_an_object", "null"),
        (b"12", "not_an_object", "number"),
        (b'"text"', "not_an_object", "string"),
    ],
)
def test_bad_lines_are_values_with_a_reason(tmp_path: Path, line: bytes, reason: str, detail: str) -> None:
    path = write(tmp_path / "a.jsonl", b'{"n": 1}\n' + line + b'\n{"n": 2}\n')
    (task,) = cut_tasks(expand(str(path), tmp_path, None).files)
    first, bad, last = read_records(task, None)
    assert isinstance(bad, BadRecord)
    assert (bad.task_line, bad.offset, bad.reason) == (2, 9, reason)
    assert re.search(detail, bad.detail)
    assert isinstance(first, RawRecord)
    assert isinstance(last, RawRecord)
    assert last.value == {"n": 2}


def test_marks_line_ends_and_double_keys_are_not_bad(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"a": 1, "a": 2}\r\n\r\n{"b": "\\ud83d\\ude42"}')
    assert read(path) == [("a.jsonl:1", {"a": 2}), ("a.jsonl:3", {"b": "🙂"})]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_packed_and_plain_files_hold_the_same_records(tmp_path: Path, suffix: str) -> None:
    lines = [json.dumps({"n": n}).encode() + b"\n" for n in range(2000)]
    halves = [b"".join(lines[:999]), b"".join(lines[999:])]
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    path = write(tmp_path / f"a.jsonl{suffix}", b"".join(pack(half) for half in halves))
    assert read(path, 500) == [(f"a.jsonl{suffix}:{n + 1}", {"n": n}) for n in range(2000)]


@pytest.mark.parametrize(("name", "data"), [("a.jsonl.gz", b'{"a": 1}\n'), ("a.jsonl.zst", b'{"a": 1}\n')])
def test_misnamed_files_are_the_users_error(tmp_path: Path, name: str, data: bytes) -> None:
    with pytest.raises(UserError, match=f"{name} cannot be unpacked"):
        read(write(tmp_path / name, data))


def test_a_json_array_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one JSON array") as caught:
        read(write(tmp_path / "a.json", b'\n [{"a": 1}]\n'))
    assert "jq" in caught.value.fix
    assert read(write(tmp_path / "b.json", b'{"a": 1}\n{"a": 2}\n')) == [("b.json:1", {"a": 1}), ("b.json:2", {"a": 2})]


@pytest.mark.parametrize(
    ("name", "data", "said", "fix"),
    [
        ("a.jsonl", gzip.compress(b'{"a": 1}\n', mtime=0), "is a gzip file", ".gz"),
        ("a.jsonl", zstandard.ZstdCompressor().compress(b'{"a": 1}\n'), "is a Zstandard file", ".zst"),
        ("a.txt", gzip.compress(b"text", mtime=0), "is a gzip file", ".gz"),
        ("a.jsonl", b"PAR1\x15\x04", "is a Parquet file", ".parquet"),
        ("a.jsonl", '{"a": 1}\n'.encode("utf-16"), "is a UTF-16 file", "iconv"),
        ("a.jsonl", b'[{"a": 1}, {"a": 2}]\n', "one JSON array", "jq -c '.[]'"),
        ("a.jsonl", b'[\n{"a": 1},\n{"a": 2}\n]\n', "one JSON array", "jq -c '.[]'"),
    ],
)
def test_a_file_that_is_something_else_is_named_as_what_it_is(
    tmp_path: Path, name: str, data: bytes, said: str, fix: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        read(write(tmp_path / name, data))
    assert fix in caught.value.fix


def test_a_line_in_the_middle_is_one_bad_record_whatever_it_looks_like(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"n": 1}\n{\n[{"n": 2}]\n\x1f\x8b\n')
    assert [what for _, what in read(path)] == [{"n": 1}, "broken_json", "not_an_object", "invalid_utf8"]
    write(tmp_path / "b.txt", b"PAR1 is how a Parquet file begins")
    assert read(tmp_path / "b.txt") == [("b.txt:1", "PAR1 is how a Parquet file begins")]


def test_an_object_over_several_lines_is_told_how_to_be_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{\n "n": 1\n}\n')
    (task,) = cut_tasks(expand(str(path), tmp_path, None).files)
    bad = next(iter(read_records(task, None)))
    assert isinstance(bad, BadRecord)
    assert "jq -c . FILE" in bad.detail


def test_a_cut_line_is_broken_at_its_own_last_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"n": 1\n')
    (task,) = cut_tasks(expand(str(path), tmp_path, None).files)
    (bad,) = read_records(task, None)
    assert isinstance(bad, BadRecord)
    assert "at column 8 " in bad.detail


@pytest.mark.parametrize("task_bytes", [64, 1 << 20])
def test_a_line_over_the_limit_is_bad_and_its_neighbours_are_not(tmp_path: Path, task_bytes: int) -> None:
    path = write(tmp_path / "a.jsonl", b'{"n": 1}\n' + b'{"n": "' + b"x" * 5000 + b'"}\n' + b'{"n": 3}')
    assert read(path, task_bytes, max_line_bytes=1000) == [
        ("a.jsonl:1", {"n": 1}),
        ("a.jsonl:2", "line_too_long"),
        ("a.jsonl:3", {"n": 3}),
    ]


def test_text_files_are_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\ntwo\n")
    assert read(path) == [("a.txt:1", "one\ntwo\n")]
    assert read(write(tmp_path / "b.txt.gz", gzip.compress(b"one\ntwo\n", mtime=0))) == [("b.txt.gz:1", "one\ntwo\n")]
    assert read(write(tmp_path / "c.txt", b"one \xff two")) == [("c.txt:1", "invalid_utf8")]
    assert read(write(tmp_path / "d.txt", b"one \0 two")) == [("d.txt:1", "nul_byte")]


def test_a_long_text_is_cut_into_tasks_at_white_space(tmp_path: Path) -> None:
    text = "".join(f"word{n} " for n in range(5000))
    pieces = [value for _, value in read(write(tmp_path / "a.txt", text.encode()), 10_000)]
    assert len(pieces) > 3
    assert "".join(pieces) == text
    assert all(piece.startswith(" ") for piece in pieces[1:])


def parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(rows, **options), path, row_group_size=10)
    return path


def test_parquet_rows_keep_their_numbers_over_row_groups(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", [{"n": n, "unused": "x"} for n in range(95)])
    files = expand(str(path), tmp_path, None).files
    for task_bytes, count in ((1, 10), (1 << 20, 1)):
        tasks = cut_tasks(files, task_bytes)
        assert len(tasks) == count
        records = [record for task in tasks for record in read_records(task, None, columns=["n", "absent"])]
        assert [record.value for record in records if isinstance(record, RawRecord)] == [{"n": n} for n in range(95)]
        assert name_places(files[0], [record.offset for record in records][93:], None) == [
            f"{path} row 94",
            f"{path} row 95",
        ]
        assert read(path, task_bytes)[-1] == ("a.parquet:95", {"n": 94, "unused": "x"})


def test_columns_that_are_not_used_are_not_read(tmp_path: Path) -> None:
    """One whose type Python cannot hold is no problem."""
    far = pa.array([2**50], pa.timestamp("ms"))
    table = pa.table({"text": ["a"], "when": far})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", columns=["text"]) == [("a.parquet:1", {"text": "a"})]
    assert read(tmp_path / "a.parquet") == [("a.parquet:1", {"text": "a"})]


@pytest.mark.parametrize("keep", [0.5, 0.98])
def test_a_truncated_or_misnamed_parquet_file_is_the_users_error(tmp_path: Path, keep: float) -> None:
    path = parquet(tmp_path / "a.parquet", [{"n": n} for n in range(100)])
    data = path.read_bytes()
    for broken in (data[: int(len(data) * keep)], b'{"n": 1}\n'):
        with pytest.raises(UserError, match="not a whole Parquet file"):
            read(write(path, broken))


def test_damage_inside_a_row_group_is_the_users_error(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", [{"n": f"{n}" * 50} for n in range(100)])
    data = bytearray(path.read_bytes())
    data[200:900] = b"\xff" * 700
    with pytest.raises(UserError, match="not a whole Parquet file"):
        read(write(path, bytes(data)))


def test_an_empty_parquet_file_has_no_tasks(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), path)
    assert read(path) == []
