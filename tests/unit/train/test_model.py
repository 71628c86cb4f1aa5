"""Models of a job: the same on every rank, checked against the tokenizer, and equal to what transformers makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.unit.train.making import MODEL, POOL, job
from tests.unit.train.test_attention import FAMILIES
from warpbeam.checkpoint.pieces import whole
from warpbeam.errors import UserError
from warpbeam.plan.plan import make_plan
from warpbeam.pool import parse_pool
from warpbeam.storage import StorageConfig
from warpbeam.train.model import Built, build, scratch_config
from warpbeam.train.seeds import seed_all

STORAGE = StorageConfig(uri="file:///unused", kind="local")


def built(tokenizer: Any, root: Path, **changes: Any) -> Built:
    asked = job(**changes)
    plan = make_plan(asked, parse_pool(POOL), world_size=1, model_config=MODEL)
    seed_all(asked.train.seed)
    return build(asked, plan, root, STORAGE, tokenizer, device=torch.device("cpu"), cache_dir=root / "cache")


def test_from_scratch_is_the_same_every_time(tokenizer: Any, tmp_path: Path) -> None:
    one, two = built(tokenizer, tmp_path).module, built(tokenizer, tmp_path).module
    other = built(tokenizer, tmp_path, train__seed=6).module
    pairs = list(zip(one.parameters(), two.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not torch.equal(pairs[0][0], pairs[0][2])


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gemma2"])
def test_initial_weights_are_distributed_as_transformers_would(family: str, tokenizer: Any, tmp_path: Path) -> None:
    settings = {"model_type": family, **FAMILIES[family], "vocab_size": 320}
    ours = built(tokenizer, tmp_path, model__config=settings).module
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    spread = {name: (p.mean().item(), p.std().item()) for name, p in theirs.named_parameters() if p.numel() > 1}
    for name, parameter in ours.named_parameters():
        mean, std = spread[name]
        assert parameter.std().item() == pytest.approx(std, rel=0.2, abs=1e-6), name
        assert parameter.mean().item() == pytest.approx(mean, abs=5e-3), name
    tied = settings.get("tie_word_embeddings", ours.config.tie_word_embeddings)
    assert (ours.get_output_embeddings().weight is ours.get_input_embeddings().weight) == tied


def test_the_vocabulary_comes_from_the_tokenizer_unless_it_is_larger(tokenizer: Any) -> None:
    shape = {key: value for key, value in MODEL.items() if key != "vocab_size"}
    assert scratch_config(shape, tokenizer).vocab_size == max(tokenizer.get_vocab().values()) + 1
    assert scratch_config(shape | {"vocab_size": 512}, tokenizer).vocab_size == 512


def test_an_embedding_too_small_is_refused_with_both_numbers(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        built(tokenizer, tmp_path, model__config=MODEL | {"vocab_size": 100}, model__tokenizer="its-folder")
    assert "100" in raised.value.what
    assert str(max(tokenizer.get_vocab().values()) + 1) in raised.value.what


def test_the_padding_tokens_row_is_drawn_and_trained_like_any_other(tokenizer: Any, tmp_path: Path) -> None:
    """A padding_idx would zero it, and freeze the end token where padding is the end token."""
    embedding = built(tokenizer, tmp_path, model__config=MODEL | {"pad_token_id": 3}).module.get_input_embeddings()
    assert embedding.padding_idx is None
    assert embedding.weight[3].abs().sum() > 0


def test_weights_are_left_to_be_read_in_pieces(tokenizer: Any, tmp_path: Path) -> None:
    config = scratch_config(MODEL, tokenizer)
    saved = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    saved.save_pretrained(tmp_path / "base")
    made = built(tokenizer, tmp_path, model__config=None, model__path="base", model__tokenizer=None)
    assert made.base is not None
    for name, parameter in saved.named_parameters():
        piece = whole(name, "weight", tuple(parameter.shape))
        assert torch.equal(made.base.read(piece), parameter.detach().flatten())
    assert made.module.lm_head.weight is made.module.model.embed_tokens.weight
    buffers = dict(made.module.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in saved.named_buffers())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_size": 32}, "has no model_type"),
        (MODEL | {"model_type": "no_such_model"}, "no_such_model"),
        (MODEL | {"hidden_size": "wide"}, "hidden_size"),
        ({"model_type": "vit", "vocab_size": 320}, "vit"),
    ],
)
def test_a_wrong_configuration_is_an_error_in_words(
    config: dict[str, Any], words: str, tokenizer: Any, tmp_path: Path
) -> None:
    asked = job()
    plan = make_plan(asked, parse_pool(POOL), world_size=1)
    changed = asked.model_copy(update={"model": asked.model.model_copy(update={"config": config})})
    with pytest.raises(UserError) as raised:
        build(changed, plan, tmp_path, STORAGE, tokenizer, device=torch.device("cpu"), cache_dir=tmp_path)
    assert words in f"{raised.value.what} {raised.value.why}"


def test_activation_checkpointing_changes_no_gradient(tokenizer: Any, tmp_path: Path) -> None:
    plain_config = MODEL | {"attention_dropout": 0.0}
    grads = []
    for on in (False, True):
        module = built(tokenizer, tmp_path, model__config=plain_config, train__activation_checkpointing=on).module
        module(input_ids=torch.arange(10)[None], use_cache=False).logits.square().mean().backward()
        assert module.is_gradient_checkpointing is on
        grads.append([p.grad for p in module.parameters()])
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(*grads, strict=True))


def test_a_hook_must_return_a_module(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hook_model.py").write_text("def build(job):\n    return 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="returned int"):
        built(tokenizer, tmp_path, code__model="hook_model:build")
    with pytest.raises(UserError, match="cannot be imported in this process"):
        built(tokenizer, tmp_path, code__model="hook_model:gone")
