"""Tokenizers: trained, loaded from a folder, saved, and refused when they would ruin a run."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data import templates
from tests.unit.data.conftest import TEXTS
from warpbeam.data.messages import ChatError
from warpbeam.data.tokenizer import (
    check_tokenizer,
    digest,
    end_of_turn_id,
    load_folder,
    load_tokenizer,
    save_tokenizer,
    stop_ids,
    train_tokenizer,
    vocabulary_size,
)
from warpbeam.data.tokenizer_files import has_template
from warpbeam.errors import UserError
from warpbeam.job import Model

CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]


@pytest.fixture
def folder(tokenizer: Any, tmp_path: Path) -> Path:
    save_tokenizer(tokenizer, tmp_path / "tok")
    return tmp_path / "tok"


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    settings = json.loads(path.read_text()) if path.exists() else {}
    settings.update(values)
    path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))


def test_a_trained_tokenizer(tokenizer: Any) -> None:
    assert [tokenizer.convert_tokens_to_ids(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")] == [
        0,
        1,
        2,
        3,
    ]
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == ("<|im_end|>", "<|pad|>", None)
    assert 260 < vocabulary_size(tokenizer) == len(tokenizer) <= 400
    for text in (*TEXTS, "never seen: \u0416\u4e2d\U0001f680 \r\n\t x  y"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert end_of_turn_id(tokenizer) == tokenizer.eos_token_id
    assert stop_ids(tokenizer) == (2,)
    check_tokenizer(tokenizer, chat=True, embedding_rows=512)


def test_a_tokenizer_for_texts_ends_texts() -> None:
    trained = train_tokenizer(TEXTS, 300, method="pretrain", seq_len=128)
    assert trained.eos_token == "<|endoftext|>"
    assert trained.model_max_length == 128
    assert stop_ids(trained) == (0, 2)


def test_training_and_digest_are_the_same_in_another_process(tokenizer: Any) -> None:
    code = (
        "from tests.unit.data.conftest import TEXTS\n"
        "from warpbeam.data.tokenizer import digest, train_tokenizer\n"
        "print(digest(train_tokenizer(TEXTS * 20, vocab_size=400)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest(tokenizer)


def test_the_digest_tells_what_matters(tokenizer: Any) -> None:
    padded = copy.deepcopy(tokenizer)
    padded([*TEXTS], padding=True, truncation=True, max_length=16)
    assert digest(padded) == digest(tokenizer)
    other = copy.deepcopy(tokenizer)
    other.chat_template = templates.QWEN2
    more = copy.deepcopy(tokenizer)
    more.add_tokens(["<new>"])
    assert len({digest(tokenizer), digest(other), digest(more)}) == 3


def test_a_saved_tokenizer_loads_the_same(tokenizer: Any, folder: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    for model in (Model(path="tok"), Model(path=str(folder)), Model(config={"model_type": "llama"}, tokenizer="tok")):
        assert digest(load_tokenizer(model, tmp_path, None, notes=notes)) == digest(tokenizer)
    assert digest(load_folder(folder, notes=notes)) == digest(tokenizer)
    assert notes == []


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama", "mistral", "gpt2", "gpt_neox"])
def test_a_trained_tokenizer_beside_any_model_gives_the_same_ids(tokenizer: Any, folder: Path, model_type: str) -> None:
    """transformers puts the word pattern of some model types in place of the tokenizer's own."""
    change(folder, "config.json", model_type=model_type)
    from transformers import AutoTokenizer

    beside = AutoTokenizer.from_pretrained(folder)
    for text in (*TEXTS, "e\u0301  \n\n a'll 12345\r\n  x"):
        assert beside(text, add_special_tokens=False)["input_ids"] == tokenizer(text)["input_ids"]
    assert beside.apply_chat_template(CHAT, return_dict=False) == tokenizer.apply_chat_template(CHAT, return_dict=False)
    assert (beside.eos_token_id, beside.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)


def test_another_models_tokenizer_is_loaded_as_it_will_be_after_export(folder: Path, tmp_path: Path) -> None:
    """A GPT-2-like word pattern becomes Qwen2's in a Qwen2 model, so it is trained on so."""
    backend = json.loads((folder / "tokenizer.json").read_text())
    backend["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps(backend))
    plain = load_tokenizer(Model(path="tok"), tmp_path, None)
    in_qwen2 = load_tokenizer(Model(config={"model_type": "qwen2"}, tokenizer="tok"), tmp_path, None)
    save_tokenizer(in_qwen2, tmp_path / "export")
    change(tmp_path / "export", "config.json", model_type="qwen2")
    assert digest(load_folder(tmp_path / "export")) == digest(in_qwen2) != digest(plain)


def test_padding_is_settled_without_a_new_entry(tokenizer: Any, folder: Path, tmp_path: Path) -> None:
    change(folder, "tokenizer_config.json", pad_token=None)
    notes: list[str] = []
    loaded = load_tokenizer(Model(path="tok"), tmp_path, None, notes=notes)
    assert (loaded.pad_token, len(loaded)) == ("<|pad|>", len(tokenizer))
    assert "no padding token" in notes[0]
    text = (folder / "tokenizer.json").read_text()
    for token in ("<|pad|>", "<|endoftext|>"):
        text = text.replace(token, token.replace("|", "!"))
    (folder / "tokenizer.json").write_text(text)
    change(folder, "tokenizer_config.json", extra_special_tokens=None)
    loaded = load_folder(folder)
    assert loaded.pad_token == loaded.eos_token == "<|im_end|>"


def test_both_places_of_a_template_are_read_and_a_conflict_is_said(folder: Path) -> None:
    own = (folder / "chat_template.jinja").read_text()
    change(folder, "tokenizer_config.json", chat_template=own)
    notes: list[str] = []
    assert load_folder(folder, notes=notes).chat_template.strip() == own.strip()
    assert notes == []
    change(folder, "tokenizer_config.json", chat_template=templates.QWEN2)
    assert load_folder(folder, notes=notes).chat_template.strip() == own.strip()
    assert "two different chat templates" in notes[0]
    (folder / "chat_template.jinja").unlink()
    assert load_folder(folder).chat_template == templates.QWEN2
    change(folder, "tokenizer_config.json", chat_template=None)
    assert load_folder(folder).chat_template is None


def test_the_jobs_template_goes_first(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(templates.MISTRAL)
    for given in ("mine.jinja", templates.MISTRAL):
        loaded = load_tokenizer(Model(path="tok", chat_template=given), tmp_path, None)
        assert loaded.chat_template == templates.MISTRAL
        save_tokenizer(loaded, tmp_path / "saved")
        assert load_folder(tmp_path / "saved").chat_template == templates.MISTRAL
    with pytest.raises(UserError, match=r"gone\.jinja"):
        load_tokenizer(Model(path="tok", chat_template="gone.jinja"), tmp_path, None)


def test_todays_date_in_a_template_is_said(folder: Path) -> None:
    notes: list[str] = []
    load_folder(folder, chat_template="{{ strftime_now('%d') }}", notes=notes)
    assert "today's date" in notes[0]


def test_a_template_that_never_ends_a_turn_is_refused(tokenizer: Any) -> None:
    endless = copy.deepcopy(tokenizer)
    endless.chat_template = templates.ENDLESS
    with pytest.raises(UserError, match="does not end an assistant's turn") as caught:
        check_tokenizer(endless, chat=True)
    assert "eos_token" in caught.value.fix
    check_tokenizer(endless, chat=False)
    assert stop_ids(endless) == (tokenizer.eos_token_id,)


def test_a_template_that_is_no_jinja_is_the_job_s_mistake_and_no_record_s(tokenizer: Any) -> None:
    broken = copy.deepcopy(tokenizer)
    broken.chat_template = "{% for m in messages %}\n{{ m.role "
    with pytest.raises(UserError, match="no valid Jinja: line 2") as caught:
        check_tokenizer(broken, chat=True)
    assert not isinstance(caught.value, ChatError)


def test_chat_data_need_a_template(tokenizer: Any) -> None:
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    check_tokenizer(bare, chat=False)
    with pytest.raises(UserError, match="no chat template") as caught:
        check_tokenizer(bare, chat=True)
    assert "model.chat_template" in caught.value.fix


def test_a_tokenizer_larger_than_the_embedding_is_refused_with_both_numbers(tokenizer: Any) -> None:
    grown = copy.deepcopy(tokenizer)
    grown.add_tokens(["<a>", "<b>", "<c>", "<d>"])
    rows = len(tokenizer)
    check_tokenizer(tokenizer, chat=True, embedding_rows=rows)
    with pytest.raises(UserError, match=f"{rows + 4} entries.* {rows} rows"):
        check_tokenizer(grown, chat=True, embedding_rows=rows)


def test_the_models_embedding_is_checked_when_its_tokenizer_is_loaded(tokenizer: Any, folder: Path) -> None:
    rows = len(tokenizer)
    for vocab_size in (rows, 10 * rows):
        load_tokenizer(
            Model(config={"model_type": "qwen2", "vocab_size": vocab_size}, tokenizer="tok"), folder.parent, None
        )
    small = Model(config={"model_type": "qwen2", "vocab_size": rows - 1}, tokenizer="tok")
    change(folder, "config.json", model_type="llama", vocab_size=rows - 2)
    for model in (small, Model(path="tok")):
        with pytest.raises(UserError, match=f"{rows} entries") as caught:
            load_tokenizer(model, folder.parent, None)
        assert caught.value.reason == "vocabulary_too_large"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Model(path="gone"), "there is no folder"),
        (Model(path="empty"), "there is no tokenizer in empty"),
        (Model(config={"model_type": "qwen2"}, tokenizer="empty"), "there is no tokenizer in empty"),
        (Model(path="broken"), "cannot be loaded"),
        (Model(config={"model_type": "qwen2"}, tokenizer={"train": {"vocab_size": 400}}), "no tokenizer to load"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_loaded_is_the_users_error(tmp_path: Path, model: Model, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=words):
        load_tokenizer(model, tmp_path, None)


def test_a_slow_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/vocab.txt").write_text("[UNK]\n[PAD]\nhello\n")
    change(
        tmp_path / "slow", "tokenizer_config.json", tokenizer_class="BertJapaneseTokenizer", word_tokenizer_type="basic"
    )
    with pytest.raises(UserError, match="is a slow one"):
        load_folder(tmp_path / "slow")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"tokenizer_config.json": "{}"}, False),
        ({"tokenizer_config.json": '{"chat_template": "{{ messages }}"}'}, True),
        ({"tokenizer_config.json": "{}", "chat_template.jinja": "{{ messages }}"}, True),
        ({"tokenizer.json": "{}"}, True),
        ({"tokenizer_config.json": "[]"}, True),
    ],
    ids=["none", "in the config", "a file of its own", "no config says so", "not to be told"],
)
def test_a_template_is_known_by_the_files_alone(tmp_path: Path, files: dict[str, str], found: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert has_template(tmp_path) is found
