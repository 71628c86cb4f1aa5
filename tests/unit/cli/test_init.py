from __future__ import annotations

import json
from pathlib import Path

import pytest

from warpbeam.cli.init import init, relative
from warpbeam.errors import UserError
from warpbeam.job import load_job


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"dialog": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a " * n}]}
        for n in range(60)
    ]
    (tmp_path / "my data.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path


def test_the_written_job_is_one_and_finds_its_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init("mine", data="my data.jsonl")
    job = load_job(folder / "mine/job.yaml").job
    assert job.data.train[0].path == "../my data.jsonl"
    assert job.data.train[0].format == "messages"
    assert job.data.train[0].fields == {"messages": "dialog"}
    assert job.train.method == "sft"
    assert "60 records" in capsys.readouterr().out


def test_a_model_and_held_out_data(folder: Path) -> None:
    init("mine", data="my data.jsonl", model="hf://Qwen/Qwen2.5-0.5B", eval_data="s3://bucket/eval/*.jsonl")
    job = load_job(folder / "mine/job.yaml").job
    assert job.model.path == "hf://Qwen/Qwen2.5-0.5B"
    assert job.data.eval[0].path == "s3://bucket/eval/*.jsonl"
    assert job.train.lr == 1e-5


def test_a_model_s_folder_is_seen_from_the_job_file(folder: Path) -> None:
    with pytest.raises(UserError, match="there is no tokenizer in"):
        init("mine", data="my data.jsonl", model="weights/small", tokenizer="tok")
    (folder / "tok").mkdir()
    (folder / "tok/tokenizer.json").write_text("{}")
    init("mine", data="my data.jsonl", model="weights/small", tokenizer="tok")
    model = load_job(folder / "mine/job.yaml").job.model
    assert (model.path, model.tokenizer) == ("../weights/small", "../tok")


def test_ready_tokens_need_the_tokenizer_that_made_them(folder: Path) -> None:
    (folder / "ids.jsonl").write_text('{"input_ids": [1, 2, 3]}\n' * 3)
    with pytest.raises(UserError, match="which tokenizer made them") as caught:
        init("mine", data="ids.jsonl")
    assert "--tokenizer PATH" in caught.value.fix
    assert not (folder / "mine").exists()
    (folder / "tok").mkdir()
    content = {"model": {"vocab": {"a": 0, "b": 6}}, "added_tokens": [{"id": 8, "content": "<|end|>"}]}
    (folder / "tok/tokenizer.json").write_text(json.dumps(content))
    init("mine", data="ids.jsonl", tokenizer="tok")
    job = load_job(folder / "mine/job.yaml").job
    assert job.model.tokenizer == "../tok"
    assert job.model.config is not None
    assert job.model.config["vocab_size"] == 9
    assert job.data.train[0].format == "tokens"


def test_nothing_is_overwritten(folder: Path) -> None:
    init("mine", data="my data.jsonl")
    with pytest.raises(UserError, match="exists already"):
        init("mine", data="my data.jsonl")


def test_bad_names_and_missing_data(folder: Path) -> None:
    with pytest.raises(UserError):
        init("../up", data="my data.jsonl")
    with pytest.raises(UserError):
        init("mine", data="nowhere.jsonl")
    with pytest.raises(UserError):
        init("mine", data="my data.jsonl", eval_data="gopher://x")
    assert not (folder / "mine").exists()


@pytest.mark.parametrize(
    ("path", "seen"),
    [("a.jsonl", "../a.jsonl"), ("/abs/a", "/abs/a"), ("s3://b/a", "s3://b/a"), ("~/a", "~/a"), ("mine/a", "a")],
)
def test_paths_are_seen_from_the_job_file(path: str, seen: str) -> None:
    assert relative(path, Path("mine")) == seen
