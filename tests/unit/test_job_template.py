"""A written job file is one that loads, and its comments are true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warpbeam.job import TrainTokenizer, load_job
from warpbeam.job_template import job_yaml
from warpbeam.plan.plan import make_plan
from warpbeam.pool import load_pool


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"model_path": "hf://Qwen/Qwen2.5-0.5B", "lr": 2e-5},
        {"eval_paths": ["held out.jsonl"], "data_format": "messages", "fields": {"messages": "dia: log"}},
        {"method": "pretrain", "data_format": "text", "epochs": None, "max_steps": 10},
        {"tokenizer": "hf://gpt2", "accelerators": 2, "every_steps": None, "epochs": 0.5},
        {"notes": {"seq_len": "95 % of the examples have 900 tokens or less"}},
    ],
)
def test_every_choice_loads(tmp_path: Path, choices: dict[str, Any]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(job_yaml(name="mine", train_paths=['odd "name" é.jsonl', "b.jsonl"], **choices))
    job = load_job(path).job
    assert [source.path for source in job.data.train] == ['odd "name" é.jsonl', "b.jsonl"]
    make_plan(job, load_pool("local").pool)


def test_choices_arrive(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = job_yaml(
        name="mine", train_paths=["a"], fields={"text": "body"}, data_format="text", lr=3e-4, notes={"seq_len": "seen"}
    )
    path.write_text(text)
    job = load_job(path).job
    assert job.data.train[0].fields == {"text": "body"}
    assert job.train.lr == 3e-4
    assert isinstance(job.model.tokenizer, TrainTokenizer)
    assert "seq_len: 1024  # seen" in text
