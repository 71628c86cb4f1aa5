"""Parameter counts equal what transformers builds, for every family we know, on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from warpbeam.errors import UserError
from warpbeam.plan.model_shape import FAMILIES, flops_per_token, flops_per_token_6n, model_shape

SMALL: dict[str, Any] = {
    "vocab_size": 500,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}
GPT2: dict[str, Any] = {"vocab_size": 500, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 40}
VARIANTS: list[dict[str, Any]] = [
    {"model_type": family, **(GPT2 if family == "gpt2" else SMALL), "tie_word_embeddings": tied}
    for family in FAMILIES
    for tied in (True, False)
]
VARIANTS += [
    {"model_type": "llama", **SMALL, "attention_bias": True, "mlp_bias": True},
    {"model_type": "llama", **SMALL, "head_dim": 32},
    {"model_type": "llama", **{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}},
    {"model_type": "qwen3", **SMALL, "head_dim": 16, "attention_bias": True},
    {"model_type": "gemma", **SMALL, "head_dim": 16, "attention_bias": True},
    {"model_type": "gemma3_text", **SMALL, "attention_bias": True},
    {"model_type": "mixtral", **SMALL, "num_local_experts": 5, "num_experts_per_tok": 2},
    {"model_type": "phi", **SMALL, "qk_layernorm": True},
    {"model_type": "gpt_neox", **SMALL, "attention_bias": False},
    {"model_type": "gpt2", **GPT2, "n_inner": 100},
]


def built(config: dict[str, Any]) -> int:
    quiet = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config, **quiet))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("config", VARIANTS, ids=lambda c: "-".join(f"{v}" for v in c.values()))
def test_counts_are_exact(config: dict[str, Any]) -> None:
    assert model_shape(config).parameters == built(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_config_leaves_out_is_transformers_default(family: str) -> None:
    """Two layers instead of the default number, or building takes seconds; every other size is the default."""
    few = {"n_layer": 2} if family == "gpt2" else {"num_hidden_layers": 2}
    config = {"model_type": family, **few}
    assert model_shape(config).parameters == built(config)
    default = AutoConfig.for_model(family)
    assert model_shape({"model_type": family}).layers == default.num_hidden_layers


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (
            {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14}
            | {"num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True},
            494_032_768,  # Qwen2.5-0.5B
        ),
        (
            {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 14336},
            8_030_261_248,  # Llama-3.1-8B
        ),
        ({"model_type": "gpt2"}, 124_439_808),
        ({"model_type": "mixtral"}, 46_702_792_704),
        ({"model_type": "mistral"}, 7_241_732_096),
    ],
    ids=["qwen2.5-0.5b", "llama-3.1-8b", "gpt2", "mixtral-8x7b", "mistral-7b"],
)
def test_published_counts(config: dict[str, Any], parameters: int) -> None:
    assert model_shape(config).parameters == parameters


def test_a_mixture_of_experts_uses_a_part_of_its_parameters() -> None:
    shape = model_shape({"model_type": "mixtral"})
    assert shape.active_parameters == pytest.approx(12.9e9, rel=0.01)
    assert flops_per_token_6n(shape) == 6 * shape.active_parameters


def test_flops() -> None:
    shape = model_shape(
        {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 14336}
    )
    assert flops_per_token_6n(shape) == 6 * 8_030_261_248
    assert flops_per_token(shape, 8192) == 6 * 8_030_261_248 + 12 * 32 * 4096 * 8192
    tied = model_shape({"model_type": "gpt2"})
    assert flops_per_token_6n(tied) == 6 * tied.parameters, "a tied embedding's output product is real work"


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"model_type": "mamba"}, "does not know the model family 'mamba'"),
        ({}, "does not know the model family None"),
        ({"model_type": "llama", **SMALL, "hidden_size": "64"}, "hidden_size must be a whole number"),
        ({"model_type": "llama", **SMALL, "num_hidden_layers": 0}, "num_hidden_layers must be a whole number"),
        ({"model_type": "llama", **SMALL, "hidden_size": 66}, "multiple of num_attention_heads"),
        ({"model_type": "qwen2", **SMALL, "num_key_value_heads": 3}, "divisor of num_attention_heads"),
    ],
)
def test_impossible_shapes(config: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UserError, match=wrong) as caught:
        model_shape(config)
    assert caught.value.fix
