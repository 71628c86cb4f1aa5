"""Every way a job file can be broken ends in one error with file, line, key and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from warpbeam.errors import UserError
from warpbeam.job import load_job
from warpbeam.spec_file import parse, placing

GOOD = """\
schema: warpbeam/job/v1
name: ok
model: {path: "hf://Qwen/Qwen2.5-0.5B"}
data:
  train: [{path: "data/*.jsonl"}]
  seq_len: 128
train:
  method: sft
  epochs: 1
  global_batch: 8
  lr: 1e-5
"""


def error_of(tmp_path: Path, text: str | bytes) -> UserError:
    path = tmp_path / "job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        load_job(path)
    message = str(caught.value)
    assert str(path) in message, "an error names the file"
    for jargon in ("pydantic", "Input should", "type=", "ValidationError", "Traceback", "Extra inputs", "NoneType"):
        assert jargon not in message
    assert caught.value.fix
    assert caught.value.exit_code == 2
    return caught.value


def edited(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_the_good_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(GOOD)
    loaded = load_job(path)
    assert loaded.job.train.lr == 1e-5
    assert loaded.root == tmp_path
    assert loaded.path == path


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml"))
    first.write_text(GOOD)
    second.write_text("# a comment\n" + GOOD + "parallelism: auto\n")
    third.write_text(edited("1e-5", "2e-5"))
    assert load_job(first).digest == load_job(second).digest != load_job(third).digest


@pytest.mark.parametrize(
    ("text", "line", "wrong", "write"),
    [
        ("modle: 1\n" + GOOD, 1, "modle: unknown key", "did you mean `model`?"),
        (edited("  lr: 1e-5", "  lrr: 1e-5\n  lr: 1e-5"), 11, "train.lrr: unknown key", "did you mean `lr`?"),
        (edited("  lr: 1e-5", "  lr: 1e-5\n  tp: 2"), 12, "train.tp: unknown key", "not built yet"),
        (edited("  lr: 1e-5", "  lr: 1e-5\n  zzz: 2"), 12, "train.zzz: unknown key", "method, epochs, max_steps"),
        ("seq_len: 3\n" + GOOD, 1, "seq_len: unknown key here", "did you mean `data.seq_len`?"),
        (edited("  lr: 1e-5", "  learning_rate: 1e-5\n  lr: 1e-5"), 11, "unknown key", "write `train.lr`"),
        (edited("lr: 1e-5", "lr: fast"), 11, 'train.lr: must be a number, it is the text "fast"', "lr: 1e-5"),
        (edited("lr: 1e-5", 'lr: "1e-5"'), 11, "must be a number", "write 1e-5 without quotes"),
        (edited("lr: 1e-5", "lr:"), 11, "train.lr: must be a number, it is empty", "lr: 1e-5"),
        (edited("lr: 1e-5", "lr: .inf"), 11, "train.lr: must be a finite number", "write a number"),
        (edited("lr: 1e-5", "lr: 1e999"), 11, "train.lr: must be a finite number", "write a number"),
        (edited("lr: 1e-5", "lr: " + "9" * 5000), 11, "train.lr: cannot be read", "quotes"),
        (edited("lr: 1e-5", "lr: [1]"), 11, "must be a number, it is a list", "lr: 1e-5"),
        (edited("epochs: 1", "epochs: true"), 9, "must be a number, it is the truth value true", "epochs: 2"),
        (edited("global_batch: 8", "global_batch: true"), 10, "must be a whole number", "global_batch: 64"),
        (edited("global_batch: 8", "global_batch: 8.5"), 10, "must be a whole number", "global_batch: 64"),
        (edited("global_batch: 8", 'global_batch: "8"'), 10, "must be a whole number", "write 8 without quotes"),
        (edited("global_batch: 8", "global_batch: 0"), 10, "must be 1 or more, it is the number 0", "global_batch: 64"),
        (edited("method: sft", "method: sftt"), 8, "must be sft | pretrain", "did you mean `sft`?"),
        (edited("name: ok", "name: 12"), 2, "name: must be text, it is the number 12", 'put it in quotes: "12"'),
        (edited("  seq_len: 128\n", ""), 4, "data.seq_len: is missing", "seq_len: 2048"),
        (edited('  train: [{path: "data/*.jsonl"}]', "  train: []"), 5, "data.train: must not be empty", "path"),
        (edited('  train: [{path: "data/*.jsonl"}]', "  train: data.jsonl"), 5, "data.train: must be a list", "path"),
        (edited('{path: "data/*.jsonl"}', "data.jsonl"), 5, "data.train[0]: must be a mapping", "path"),
        (edited("  seq_len: 128", "  seq_len: 128\n  seq_len: 64"), 7, "is written twice, first on line 6", "keep one"),
        (GOOD + "train: {}\n", 12, "train: is written twice, first on line 7", "keep one"),
        (edited("schema: warpbeam/job/v1\n", ""), 1, "schema: is missing", "schema: warpbeam/job/v1"),
        (edited("job/v1", "job/v9"), 1, "must be warpbeam/job/v1", "did you mean `warpbeam/job/v1`?"),
        (edited("schema: warpbeam/job/v1", "1: x\nschema: warpbeam/job/v1"), 1, "a key must be text", "quotes"),
        (edited("name: ok", "name: &x ok"), 2, "anchors (&) and aliases (*) are not read", "write the value out"),
        (edited("name: ok", "name: !env HOME"), 2, "the tag !env is not read", "write the plain value"),
        (edited("model: {", "model: {<<: {revision: x}, "), 3, "`<<` is not read", "write the keys out"),
    ],
)
def test_a_mistake_has_line_key_and_advice(tmp_path: Path, text: str, line: int, wrong: str, write: str) -> None:
    error = error_of(tmp_path, text)
    assert f"job.yaml:{line}: " in error.what
    assert wrong in error.what
    assert write in error.fix


@pytest.mark.parametrize(
    ("text", "where", "wrong"),
    [
        (edited("  seq_len", "\tseq_len"), ":6:", "a tab"),
        (edited("name: ok", "name: ok: no"), ":2:", "a `:` where no key can be"),
        (edited("epochs: 1", " epochs: 1"), ":9:", "a `:` where no key can be"),
        (edited('"hf://Qwen/Qwen2.5-0.5B"}', '"hf://Qwen/Qwen2.5-0.5B"'), ":4:", "YAML"),
        (edited("name: ok", "name: @ok"), ":2:", "cannot begin with this character"),
        (edited("name: ok", 'name: "ok'), "", "does not fit the lines before it"),
        (GOOD + "---\na: 1\n", ":12:", "a second document"),
        (edited("name: ok", "name: o\x01k"), ":2:", "a character that YAML does not allow"),
        (edited("name: ok", "name: o\x00k"), ":2:", "a character that YAML does not allow"),
        (b"name: caf\xe9\n", ":1:", "not UTF-8"),
        ("", "", "is empty"),
        ("# only a comment\n", "", "is empty"),
        ("- a\n- b\n", "", "is not a mapping"),
        ("just text\n", "", "is not a mapping"),
        ("a: " + "[" * 5000, "", "is nested too deeply"),
    ],
)
def test_broken_yaml_says_where(tmp_path: Path, text: str | bytes, where: str, wrong: str) -> None:
    error = error_of(tmp_path, text)
    assert f"job.yaml{where}" in error.what
    assert wrong in error.what


def test_all_problems_are_listed_at_once_in_the_files_order(tmp_path: Path) -> None:
    text = (
        edited("name: ok", "name: Not Ok")
        .replace("lr: 1e-5", "lr: fast\n  tp: 1")
        .replace("seq_len: 128", "seq_len: 0")
    )
    error = error_of(tmp_path, text + "recipe: nothing\ncode: {loss: a.py}\n")
    lines = error.what.splitlines()
    assert lines[0].endswith("has 6 problems:")
    assert [int(line.split("job.yaml:")[1].split(":")[0]) for line in lines[1:]] == [2, 6, 11, 12, 13, 14]


def test_a_byte_order_mark_and_crlf_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_job(path).job.name == "ok"


def test_a_missing_file_offers_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD)
    with pytest.raises(UserError, match="there is no job file") as caught:
        load_job(tmp_path / "jobb.yaml")
    assert str(tmp_path / "job.yaml") in caught.value.fix
    with pytest.raises(UserError, match="is a folder") as caught:
        load_job(tmp_path)
    assert "job.yaml" in caught.value.fix


def test_a_data_file_is_not_read_as_a_job(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a data file, not a job file") as caught:
        load_job(tmp_path / "data.jsonl")
    assert "warpbeam init NAME --data" in caught.value.fix
    path = tmp_path / "data"
    path.write_bytes(b"x" * (2 << 20))
    with pytest.raises(UserError, match="that is no job file"):
        load_job(path)


def test_yaml_1_2() -> None:
    spec = parse("a: 1e-5\nb: no\nc: 0x1F\nd: 0o17\ne: 012\nf: 2024-01-01\ng: ~\nh: 1:30\ni: True\nj: 1_000", name="x")
    assert spec.data == {
        "a": 1e-5,
        "b": "no",
        "c": 31,
        "d": 15,
        "e": 12,
        "f": "2024-01-01",
        "g": None,
        "h": "1:30",
        "i": True,
        "j": 1000,
    }
    assert parse("%YAML 1.1\n---\na: yes\n", name="x").data == {"a": "yes"}


def test_every_key_knows_its_line() -> None:
    spec = parse("a:\n  - b: 1\n    c: 2\n  - {d: 3,\n     e: 4}\n", name="x")
    assert spec.line_of(("a", 0, "c")) == 3
    assert spec.line_of(("a", 1, "e")) == 5
    assert spec.line_of(("a", 1, "missing")) == 4
    assert spec.line_of(("nothing",)) == 1


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("train.global_batch 5 does not divide by 2 ranks", 10),
        ("model.config.hidden_size must be a multiple", 3),
        ("data.train[0].path: is not there", 5),
        ("resources.accelerators asks for 8", None),
        ("data cannot be read from there", None),
        ("there is no folder", None),
    ],
)
def test_an_error_that_begins_with_a_key_is_placed(tmp_path: Path, what: str, line: int | None) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(GOOD)
    with pytest.raises(UserError) as caught, placing(path):
        raise UserError(what, why="so", fix="this", reason="code")
    assert caught.value.what == (f"{path}:{line}: {what}" if line else what)
    assert (caught.value.why, caught.value.fix, caught.value.reason) == ("so", "this", "code")
