"""What a model folder says about itself, and what is odd about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config

from tests.unit.serve.tokenizers_for_tests import CHATML, byte_level
from warpbeam.errors import UserError
from warpbeam.serve.model_folder import SamplingDefaults, open_model_folder

NO_TENSORS = (2).to_bytes(8, "little") + b"{}"


def make(
    path: Path, *, template: str | None = CHATML, generation: dict[str, Any] | None = None, rows: int = 384
) -> Path:
    tokenizer = byte_level(template)
    tokenizer.save_pretrained(path)
    Qwen2Config(vocab_size=rows, max_position_embeddings=256, eos_token_id=0).save_pretrained(path)
    (path / "model.safetensors").write_bytes(NO_TENSORS)
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def set_in_config(path: Path, template: str) -> None:
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))


def test_a_plain_folder_has_nothing_odd(tmp_path: Path) -> None:
    folder = open_model_folder(make(tmp_path, generation={"eos_token_id": [1]}))
    assert (folder.max_positions, folder.vocabulary, folder.end_ids, folder.notes) == (256, 384, (1,), ())
    assert folder.chat_template == CHATML
    assert folder.defaults == SamplingDefaults()


def test_template_in_the_config_only(tmp_path: Path) -> None:
    make(tmp_path, template=None)
    set_in_config(tmp_path, CHATML)
    folder = open_model_folder(tmp_path)
    assert (folder.chat_template, folder.notes) == (CHATML, ())


def test_template_in_both_and_different_is_told(tmp_path: Path) -> None:
    make(tmp_path)
    set_in_config(tmp_path, "something else")
    folder = open_model_folder(tmp_path)
    assert folder.chat_template == CHATML, "transformers' own rule"
    assert "different chat templates" in folder.notes[0]


def test_template_in_both_and_equal_is_fine(tmp_path: Path) -> None:
    make(tmp_path)
    set_in_config(tmp_path, CHATML)
    assert open_model_folder(tmp_path).notes == ()


def test_no_template_is_told(tmp_path: Path) -> None:
    folder = open_model_folder(make(tmp_path, template=None))
    assert folder.chat_template is None
    assert "no chat template" in folder.notes[0]


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": [2, 5]}, (1, 2, 5)),
        ({"eos_token_id": 2}, (1, 2)),
        (None, (0, 1)),
        ({"eos_token_id": None}, (1,)),
    ],
)
def test_end_tokens_of_the_generation_config_and_the_tokenizer(
    tmp_path: Path, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    assert open_model_folder(make(tmp_path, generation=generation)).end_ids == expected


def test_sampling_defaults(tmp_path: Path) -> None:
    generation = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}
    folder = open_model_folder(make(tmp_path, generation=generation))
    assert folder.defaults == SamplingDefaults(0.7, 0.8, 20)
    assert "repetition_penalty" in folder.notes[0]


def test_padding_rows_are_never_sampled(tmp_path: Path) -> None:
    folder = open_model_folder(make(tmp_path))
    known = len(folder.tokenizer)
    assert folder.never_sampled() == list(range(known, 384))


def test_a_tokenizer_beyond_the_embedding_is_told(tmp_path: Path) -> None:
    folder = open_model_folder(make(tmp_path, rows=300))
    assert "300 rows" in folder.notes[0]


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="config"):
        open_model_folder(tmp_path)
    make(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="safetensors"):
        open_model_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(NO_TENSORS)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        open_model_folder(tmp_path)
    make(tmp_path, generation={})
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        open_model_folder(tmp_path)
