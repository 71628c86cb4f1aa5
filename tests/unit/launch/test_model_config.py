"""What the plan may know of a model from scratch: its vocabulary, where a tokenizer is named by path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.jobs import job, pool
from warpbeam.errors import UserError
from warpbeam.launch.model_config import read_model_config
from warpbeam.plan.plan import make_plan
from warpbeam.storage.config import StorageConfig

ADDED = [{"id": 301, "content": "<|im_end|>"}]


@pytest.mark.parametrize(
    ("content", "entries"),
    [
        ({"model": {"vocab": {"a": 0, "b": 299}}, "added_tokens": ADDED}, 302),
        ({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}, "added_tokens": []}, 2),
    ],
)
def test_the_tokenizers_entries_size_the_embedding(tmp_path: Path, content: dict[str, Any], entries: int) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words/tokenizer.json").write_text(json.dumps(content))
    asked = job(model={"config": {"model_type": "qwen2", "hidden_size": 64}, "tokenizer": "words"})
    config = read_model_config(asked, tmp_path, StorageConfig(uri="file:///nowhere", kind="local"))
    assert config is not None
    assert config["vocab_size"] == entries
    small, default = (make_plan(asked, pool(), model_config=given).parameters for given in (config, None))
    assert small is not None
    assert default is not None
    assert default - small == 64 * (151_936 - entries) * 2


def test_a_tokenizer_larger_than_the_embedding_is_refused_by_the_plan(tmp_path: Path) -> None:
    store = StorageConfig(uri="file:///nowhere", kind="local")
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 301}))
    (tmp_path / "m/tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": ADDED}))
    for model in ({"path": "m"}, {"config": {"model_type": "qwen2", "vocab_size": 301}, "tokenizer": "m"}):
        with pytest.raises(UserError, match="the tokenizer has 302 entries, the model's embedding only 301 rows"):
            read_model_config(job(model=model), tmp_path, store)


def test_what_the_job_says_needs_no_file(tmp_path: Path) -> None:
    store = StorageConfig(uri="file:///nowhere", kind="local")
    assert read_model_config(job(), tmp_path, store) is None
    said = {"config": {"model_type": "qwen2", "vocab_size": 500}, "tokenizer": "s3://bucket/nowhere"}
    assert read_model_config(job(model=said), tmp_path, store) is None


def test_a_tokenizer_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    asked = job(model={"config": {"model_type": "qwen2"}, "tokenizer": "nowhere"})
    with pytest.raises(UserError, match="there is no folder"):
        read_model_config(asked, tmp_path, StorageConfig(uri="file:///nowhere", kind="local"))
