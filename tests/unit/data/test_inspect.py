"""What `warpbeam init --data` sees and proposes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warpbeam.data.inspect import inspect_data, proposed_seq_len
from warpbeam.errors import UserError


def write(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def turn(asked: str, answered: str) -> dict[str, Any]:
    return {"dialog": [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}], "id": 1}


def test_a_report(tokenizer: Any, tmp_path: Path) -> None:
    rows = [turn("hello", "world " * n) for n in range(1, 200)]
    write(tmp_path / "d/a.jsonl", [*rows, "{"])
    write(tmp_path / "d/_SUCCESS", [])
    report = inspect_data("d", tmp_path, None)
    assert (report.format, report.fields, report.method) == ("messages", {"messages": "dialog"}, "sft")
    assert (report.records, report.bad, len(report.lengths)) == (200, {"broken_json": 1}, 199)
    assert report.bad_places[0].startswith(f"{tmp_path}/d/a.jsonl:200: broken_json")
    assert report.expansion.passed_over == {"hidden": 1}
    assert report.columns == ("dialog", "id")
    assert report.bytes == (tmp_path / "d/a.jsonl").stat().st_size
    assert sum(count for _, count in report.histogram) == 199
    assert report.seq_len == 512
    assert report.longer == 0
    assert not report.exact
    assert report.percentile(0.5) == report.lengths[99]
    assert inspect_data("d", tmp_path, None, tokenizer=tokenizer).exact


def test_few_records_of_large_data_are_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [turn("hello", "world")] * 500)
    report = inspect_data("a.jsonl", tmp_path, None, limit=50)
    assert report.records == 50


@pytest.mark.parametrize(
    ("rows", "format_name", "method"),
    [
        ([{"text": "hello " * 100}], "text", "pretrain"),
        ([{"prompt": "hello", "completion": "world"}], "prompt-completion", "sft"),
        ([{"question": "hello", "answer": "world"}], "prompt-completion", "sft"),
        ([{"input_ids": [1, 2, 3]}], "tokens", "sft"),
        ([{"instruction": "a", "input": "b", "output": "c", "text": "d"}], "alpaca", "sft"),
    ],
)
def test_other_formats(tmp_path: Path, rows: list[Any], format_name: str, method: str) -> None:
    report = inspect_data(str(write(tmp_path / "a.jsonl", rows)), tmp_path, None)
    assert (report.format, report.method) == (format_name, method)
    assert report.other_formats == (("text",) if format_name == "alpaca" else ())


def test_records_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "q"}
    good = {"messages": [asked, {"role": "assistant", "content": "a"}]}
    rows = [good, {"messages": [asked]}, {"messages": 7}, {"messages": [{"role": "x"}]}]
    report = inspect_data(str(write(tmp_path / "a.jsonl", rows)), tmp_path, None)
    assert report.bad == {"no_loss": 1, "wrong_type": 1, "unknown_role": 1}
    assert [place.removeprefix(f"{tmp_path}/a.jsonl:")[0] for place in report.bad_places] == ["2", "3", "4"]


@pytest.mark.parametrize("rows", [["", " "], ["{", "["], [{"x": 1}], [{"messages": 7}]])
def test_nothing_usable_is_an_error(tmp_path: Path, rows: list[Any]) -> None:
    with pytest.raises(UserError) as caught:
        inspect_data(str(write(tmp_path / "a.jsonl", rows)), tmp_path, None)
    assert caught.value.reason in ("no_records", "unknown_format")


def test_packed_files_are_looked_into(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps(turn("hello", "world")).encode()))
    assert inspect_data("a.jsonl.gz", tmp_path, None).format == "messages"


LIGHT = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "pyarrow", "zstandard", "torch", "ray", "transformers", "tokenizers"):
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
from pathlib import Path
from warpbeam.data.inspect import inspect_data
from warpbeam.errors import UserError
print(inspect_data("a.jsonl", Path(sys.argv[1]), None).format)
for name in ("a.parquet", "a.jsonl.zst"):
    try:
        inspect_data(name, Path(sys.argv[1]), None)
    except UserError as error:
        print(error.reason)
"""


def test_the_light_core_looks_at_data(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [turn("hello", "world")])
    for name in ("a.parquet", "a.jsonl.zst"):
        (tmp_path / name).write_bytes(b"any")
    done = subprocess.run([sys.executable, "-c", LIGHT, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.split() == ["messages", "missing_extra", "missing_extra"], done.stderr


def test_seq_len_holds_nearly_all() -> None:
    assert proposed_seq_len([10] * 99 + [5000], "messages") == 8192
    assert proposed_seq_len([10] * 1000 + [5000], "messages") == 128
    assert proposed_seq_len([700] * 10, "messages") == 1024
    assert proposed_seq_len([10**6], "messages") == 8192
    assert proposed_seq_len([10] * 5, "text") == 128
    assert proposed_seq_len([1000] * 20, "text") == 512
    assert proposed_seq_len([1000] * 100, "text") == 1024
    assert proposed_seq_len([1000] * 2000, "text") == 2048


def test_a_record_counts_once_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": "a", "completion": "b"}] * 8 + [{"prompt": "a"}] + ["{"]
    report = inspect_data(str(write(tmp_path / "d.jsonl", rows)), tmp_path, None)
    assert (report.records, sum(report.bad.values())) == (10, 2)
