"""Parameter counts equal what transformers builds, for every family we know, on the meta device."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from warpbeam.errors import UserError
from warpbeam.plan.config_keys import ELSEWHERE, NAME_OF, foreign_keys, idle_notes, misspelt_keys
from warpbeam.plan.families import FAMILIES
from warpbeam.plan.flops import flops_per_token, flops_per_token_6n, matrix_flops_per_token
from warpbeam.plan.given_shape import given_shape
from warpbeam.plan.model_shape import defaults_taken, model_shape

SMALL: dict[str, Any] = {
    "vocab_size": 500,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}
GPT2: dict[str, Any] = {"vocab_size": 500, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 40}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 48, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
MLA: dict[str, Any] = EXPERTS | LATENT | {"v_head_dim": 6, "n_routed_experts": 5, "num_key_value_heads": 4}
OWN: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gptj": GPT2 | {"rotary_dim": 4},
    "opt": SMALL | {"ffn_dim": 96, "max_position_embeddings": 40},
    "falcon": {**SMALL, "ffn_hidden_size": 96, "num_kv_heads": 4},
    "qwen2_moe": SMALL | EXPERTS | {"num_experts": 5, "shared_expert_intermediate_size": 40},
    "qwen3_moe": SMALL | EXPERTS | {"num_experts": 5},
    "deepseek_v2": SMALL | MLA | {"first_k_dense_replace": 1},
    "deepseek_v3": SMALL | MLA | {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
}
VARIANTS: list[dict[str, Any]] = [
    {"model_type": family, **OWN.get(family, SMALL), "tie_word_embeddings": tied}
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
    {"model_type": "gptj", **OWN["gptj"], "n_inner": 100},
    {"model_type": "opt", **OWN["opt"], "word_embed_proj_dim": 32, "do_layer_norm_before": False},  # OPT-350M
    {"model_type": "opt", **OWN["opt"], "enable_bias": False},
    {"model_type": "opt", **OWN["opt"], "layer_norm_elementwise_affine": False},
    {"model_type": "falcon", **OWN["falcon"], "new_decoder_architecture": True, "num_kv_heads": 2},  # Falcon-40B
    {"model_type": "falcon", **OWN["falcon"], "num_ln_in_parallel_attn": 2},
    {"model_type": "falcon", **OWN["falcon"], "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    {"model_type": "opt", **OWN["opt"], "_remove_final_layer_norm": True},
    {"model_type": "falcon", **OWN["falcon"], "multi_query": False, "bias": True, "parallel_attn": False},
    {"model_type": "qwen2_moe", **OWN["qwen2_moe"], "mlp_only_layers": [1], "qkv_bias": False},
    {"model_type": "qwen2_moe", **OWN["qwen2_moe"], "decoder_sparse_step": 2},
    {"model_type": "qwen3_moe", **OWN["qwen3_moe"], "head_dim": 32, "attention_bias": True},
    {"model_type": "qwen3_moe", **OWN["qwen3_moe"], "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    {"model_type": "deepseek_v2", **OWN["deepseek_v2"], "q_lora_rank": None, "n_shared_experts": 3},
    {"model_type": "deepseek_v3", **OWN["deepseek_v3"], "attention_bias": True, "first_k_dense_replace": 3},
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
    few = {"n_layer": 2} if family in ("gpt2", "gptj") else {"num_hidden_layers": 2}
    few |= {"num_experts_per_tok": 6} if family == "deepseek_v2" else {}
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
        ({"model_type": "gptj"}, 6_050_882_784),
        (
            {"model_type": "qwen3_moe", "num_hidden_layers": 48, "head_dim": 128},
            30_532_122_624,  # Qwen3-30B-A3B
        ),
        ({"model_type": "deepseek_v3"}, 671_026_404_352),
    ],
    ids=["qwen2.5-0.5b", "llama-3.1-8b", "gpt2", "mixtral-8x7b", "mistral-7b", "gpt-j", "qwen3-30b-a3b", "deepseek-v3"],
)
def test_published_counts(config: dict[str, Any], parameters: int) -> None:
    assert model_shape(config).parameters == parameters


def test_a_mixture_of_experts_uses_a_part_of_its_parameters() -> None:
    shape = model_shape({"model_type": "mixtral"})
    assert shape.active_parameters == pytest.approx(12.9e9, rel=0.01)
    assert flops_per_token_6n(shape) == 6 * shape.active_parameters


def test_the_experts_of_deepseek() -> None:
    shape = model_shape({"model_type": "deepseek_v3"})
    assert shape.active_parameters == pytest.approx(37.6e9, rel=0.01)
    assert (shape.dense_layers, shape.shared_intermediate_size, shape.intermediate_size) == (3, 2048, 2048)


def test_a_shape_from_its_numbers() -> None:
    """An unknown family: the numbers are enough, counted as a Llama."""
    numbers = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}
    assert given_shape(numbers).parameters == 8_030_261_248
    assert given_shape(numbers | {"params": 9e9}).parameters == 9_000_000_000
    plain = given_shape(numbers | {"gated": 0})
    assert plain.parameters == 8_030_261_248 - 32 * 4096 * 14336
    assert not plain.gated
    experts = given_shape(numbers | {"vocab": 32000, "experts": 8, "experts_per_token": 2})
    assert experts.parameters == 46_702_792_704
    assert experts.active_parameters == model_shape({"model_type": "mixtral"}).active_parameters
    with pytest.raises(UserError, match="lacks hidden, heads"):
        given_shape({"layers": 1, "ffn": 3, "vocab": 3})
    with pytest.raises(UserError, match="has no depth"):
        given_shape(numbers | {"depth": 3})


def test_flops() -> None:
    shape = model_shape(
        {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 14336}
    )
    assert flops_per_token_6n(shape) == 6 * 8_030_261_248
    assert flops_per_token(shape, 8192) == 6 * 8_030_261_248 + 12 * 32 * 4096 * 8192
    tied = model_shape({"model_type": "gpt2"})
    assert flops_per_token_6n(tied) == 6 * tied.parameters, "a tied embedding's output product is real work"


@pytest.mark.parametrize("layers", [2, 24])
def test_tying_embeddings_saves_their_parameters_and_no_work(layers: int) -> None:
    """A known fault elsewhere: the embedding is taken off twice, and the output's product is forgotten."""
    sizes = {"vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14}
    config = {"model_type": "qwen2", "num_hidden_layers": layers, "num_key_value_heads": 1, **sizes}
    tied, untied = (model_shape(config | {"tie_word_embeddings": flag}) for flag in (True, False))
    assert untied.parameters - tied.parameters == 151_936 * 896
    assert matrix_flops_per_token(untied) == matrix_flops_per_token(tied)
    products = layers * (896 * (14 + 2) * 64 + 896 * 896 + 3 * 896 * 4864) + 151_936 * 896
    assert matrix_flops_per_token(tied) == pytest.approx(6 * products, rel=1e-3)


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"model_type": "mamba"}, "does not know the model family 'mamba'"),
        ({}, "does not know the model family None"),
        ({"model_type": "llama", **SMALL, "hidden_size": "64"}, "hidden_size must be a whole number"),
        ({"model_type": "llama", **SMALL, "num_hidden_layers": 0}, "num_hidden_layers must be a whole number"),
        ({"model_type": "llama", **SMALL, "hidden_size": 66}, "multiple of twice num_attention_heads"),
        ({"model_type": "qwen2", **SMALL, "num_key_value_heads": 3}, "divisor of num_attention_heads"),
        (
            {"model_type": "qwen2", "hidden_size": 96, "num_attention_heads": 24},
            r"num_key_value_heads must be a divisor of num_attention_heads \(24\), it is 32 by qwen2's default",
        ),
        ({"model_type": "llama", **SMALL, "num_hidden_layers": 10**9}, "num_hidden_layers must be at most 10,000"),
        ({"model_type": "llama", **SMALL, "tie_word_embeddings": "false"}, "must be true or false, it is 'false'"),
        ({"model_type": "qwen3_moe", **SMALL, "mlp_only_layers": 5}, "mlp_only_layers must be a list"),
        ({"model_type": "qwen3_moe", **SMALL, "mlp_only_layers": [[1]]}, "mlp_only_layers must be a list"),
        ({"model_type": "qwen3_moe", **SMALL, "decoder_sparse_step": "x"}, "decoder_sparse_step must be a whole"),
        ({"model_type": "deepseek_v3", **SMALL, "first_k_dense_replace": "x"}, "first_k_dense_replace must be"),
        ({"model_type": "deepseek_v3", **SMALL, "n_shared_experts": "2"}, "n_shared_experts must be"),
        ({"model_type": "mixtral", **SMALL, "num_experts_per_tok": 9}, "at most the 8 experts, it is 9"),
        ({"model_type": "mistral", **SMALL, "sliding_window": 0}, "sliding_window must be a whole number, 1 or more"),
        ({"model_type": "qwen2", **SMALL, "sliding_window": "x"}, "sliding_window must be a whole number"),
        ({"model_type": "qwen2", **SMALL, "use_sliding_window": "yes"}, "use_sliding_window must be true or false"),
        ({"model_type": "qwen3", **SMALL, "max_window_layers": -1}, "max_window_layers must be a whole number from 0"),
        ({"model_type": "gemma3_text", **SMALL, "sliding_window_pattern": 0}, "sliding_window_pattern must be a whole"),
        ({"model_type": "gemma2", **SMALL, "layer_types": ["full_attention"]}, "for each of the 3 layers"),
        ({"model_type": "gemma2", **SMALL, "layer_types": ["a", "b", "c"]}, "full_attention or sliding_attention"),
        # named as the file names it; transformers takes a family's own key and the common one
        ({"model_type": "gpt2", "n_inner": "x"}, "model.config.n_inner must be"),
        ({"model_type": "gpt2", "hidden_size": "x"}, "model.config.hidden_size must be"),
        ({"model_type": "gpt2", "n_embd": 66, "n_head": 4}, r"n_embd must be a multiple of n_head \(4\)"),
        ({"model_type": "deepseek_v3", **SMALL, "n_routed_experts": "x"}, "model.config.n_routed_experts must be"),
    ],
)
def test_impossible_shapes(config: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UserError, match=wrong) as caught:
        model_shape(config)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"layers": float("inf")}, "layers must be a whole number from 1 to 10,000, it is inf"),
        ({"layers": float("nan")}, "it is nan"),
        ({"layers": 2.7}, "it is 2.7"),
        ({"layers": 1e9}, "it is 1000000000"),
        ({"gated": 7}, "gated must be 0 or 1"),
        ({"params": -5}, "params must be a whole number, 1 or more"),
        ({"params": 5}, "params is 5, and the sizes come to 95040"),
        ({"params": 1e40}, "and the sizes come to 95040"),
        ({"window": 0}, "window must be a whole number from 1"),
        ({"experts": 4, "experts_per_token": 8}, "experts_per_token is 8, there are 4"),
        ({"heads": 3, "kv_heads": 2}, "hidden 64 is no multiple of heads 3 and heads 3 is no multiple of kv_heads 2"),
    ],
)
def test_numbers_that_are_no_sizes(changes: dict[str, float], wrong: str) -> None:
    numbers = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 100} | changes
    with pytest.raises(UserError, match=wrong) as caught:
        given_shape(numbers)
    assert caught.value.fix


@given(heads=st.integers(1, 40), kv_heads=st.integers(1, 40), hidden=st.integers(1, 300))
def test_what_is_offered_for_heads_is_accepted(heads: int, kv_heads: int, hidden: int) -> None:
    typed = {"layers": 2, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "ffn": 128, "vocab": 100}
    try:
        given_shape(typed)
    except UserError as refused:
        for offer in refused.fix.removeprefix("write `").removesuffix("`").split("`, or `"):
            given_shape(typed | {name: float(value) for name, value in (pair.split("=") for pair in offer.split(","))})


@pytest.mark.parametrize(
    ("config", "fix"),
    [
        ({"model_type": "llama", "num_key_value_heads": 3}, "`num_key_value_heads: 2`"),
        ({"model_type": "llama", "num_key_value_heads": 7}, "`num_key_value_heads: 8`"),
        ({"model_type": "llama", "hidden_size": 4100}, "`hidden_size: 4096`"),
        (
            {"model_type": "llama", "hidden_size": 4100, "num_key_value_heads": 30},
            "`hidden_size: 4096` and `num_key_value_heads: 32`",
        ),
        (
            {"model_type": "falcon", "num_attention_heads": 64, "hidden_size": 4096, "num_kv_heads": 5}
            | {"new_decoder_architecture": True},
            "`num_kv_heads: 4`",
        ),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "`num_experts_per_tok: 8`"),
        ({"model_type": "gpt2", "n_inner": "x"}, "`n_inner: 3072`"),
    ],
)
def test_the_nearest_legal_value_is_offered(config: dict[str, Any], fix: str) -> None:
    with pytest.raises(UserError) as caught:
        model_shape(config)
    assert caught.value.fix == f"write for example {fix}"
    model_shape(config | {key: int(value) for key, value in re.findall(r"`(\w+): (\d+)`", fix)})


def test_params_that_the_sizes_nearly_come_to_are_taken() -> None:
    numbers = {"layers": 2.0, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 100, "params": 100_000}
    assert given_shape(numbers).parameters == 100_000


WINDOWED: list[dict[str, Any]] = [
    {"model_type": "mistral"},
    {"model_type": "mistral", "sliding_window": None},
    {"model_type": "mistral", "sliding_window": 100},
    {"model_type": "mixtral"},
    {"model_type": "mixtral", "sliding_window": 100},
    {"model_type": "phi3"},
    {"model_type": "phi3", "sliding_window": 2047},
    {"model_type": "llama", "sliding_window": 100},
    {"model_type": "gemma", "sliding_window": 100},
    {"model_type": "gemma2"},
    {"model_type": "gemma2", "sliding_window": 100},
    {"model_type": "gemma2", "num_hidden_layers": 3, "layer_types": 2 * ["full_attention"] + ["sliding_attention"]},
    {"model_type": "gemma3_text"},
    {"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 3},
    {"model_type": "qwen2"},
    {"model_type": "qwen2", "use_sliding_window": True},
    {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 40},
    {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 0, "sliding_window": 100},
    {"model_type": "qwen2_moe"},
    {"model_type": "qwen2_moe", "use_sliding_window": True, "max_window_layers": 7},
    {"model_type": "qwen3_moe"},
    {"model_type": "qwen3_moe", "use_sliding_window": True},
]


@pytest.mark.parametrize("config", WINDOWED, ids=lambda c: "-".join(f"{v}" for v in c.values()))
def test_windows_are_those_of_transformers(config: dict[str, Any]) -> None:
    """By layer where the configuration says it so, else all layers; what it writes is read alike."""
    shape, built_config = model_shape(config), AutoConfig.for_model(**config)
    has_none = config["model_type"] in ("llama", "gemma")  # whose code reads no such key
    window = None if has_none else getattr(built_config, "sliding_window", None)
    types = getattr(built_config, "layer_types", None) or built_config.num_hidden_layers * ["sliding_attention"]
    layers = types.count("sliding_attention") if window else 0
    assert (shape.window, shape.windowed_layers) == ((window, layers) if layers else (None, 0))
    written = model_shape(built_config.to_dict())
    assert (written.window, written.windowed_layers) == (shape.window, shape.windowed_layers)


def test_a_window_bounds_what_attention_counts() -> None:
    """12 L H s with s at most the window, in the layers that have one."""
    numbers = {"layers": 4.0, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 100}
    full, windowed = given_shape(numbers), given_shape(numbers | {"window": 1000})
    assert (windowed.window, windowed.windowed_layers) == (1000, 4)
    assert flops_per_token(full, 4000) - flops_per_token(windowed, 4000) == 12 * 4 * 64 * 3000
    assert flops_per_token(full, 1000) == flops_per_token(windowed, 1000)
    mixed = model_shape({"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 512})
    seen = 5 * 512 + 4096
    assert flops_per_token(mixed, 4096) - flops_per_token_6n(mixed) == 12 * mixed.query_size * seen


@given(heads=st.integers(1, 80), kv_heads=st.integers(1, 80), hidden=st.integers(1, 600), experts=st.integers(1, 20))
def test_what_is_offered_for_a_config_is_accepted(heads: int, kv_heads: int, hidden: int, experts: int) -> None:
    config = {"model_type": "mixtral", "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    config |= {"hidden_size": hidden, "num_experts_per_tok": experts}
    for _ in range(2):  # heads together, then experts
        try:
            model_shape(config)
        except UserError as refused:
            config |= {key: int(value) for key, value in re.findall(r"`(\w+): (\d+)`", refused.fix)}
    model_shape(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_is_spelt_right(family: str) -> None:
    written = AutoConfig.for_model(family).to_dict()
    assert not [key for key, near in misspelt_keys(written).items() if near not in written]
    assert foreign_keys(written) == {}
    assert defaults_taken(written) == {}
    assert idle_notes(written | {"transformers_version": "5"}, "it") == ()
    del written["transformers_version"]
    assert idle_notes(written, "it") == ()


def test_sizes_that_are_a_default_are_told() -> None:
    assert defaults_taken({"model_type": "mistral", "hidden_size": 64, "vocab_size": 9, "intermediate_size": 9}) == {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "num_hidden_layers": 2, "vocab_size": 9}
    assert defaults_taken(gpt2) == {"n_head": 12}, "either name is taken, and n_inner follows from n_embd"
    llama = {"model_type": "llama", **SMALL, "num_attention_heads": 16}
    del llama["num_key_value_heads"]
    assert defaults_taken(llama) == {"num_key_value_heads": 16}, "as many as there are heads"
    assert defaults_taken({"model_type": "qwen3_moe", **SMALL}) == {
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    }
    assert "num_kv_heads" not in defaults_taken({"model_type": "falcon"}), "one, whatever the config says"
    assert defaults_taken({"model_type": "gemma", **SMALL})["head_dim"] == 256


@pytest.mark.parametrize("value", ["64", 64.0])
def test_a_size_in_other_words_is_offered_as_itself(value: object) -> None:
    with pytest.raises(UserError) as refused:
        model_shape({"model_type": "llama", **SMALL, "vocab_size": value})
    assert "`vocab_size: 64`" in refused.value.fix


@pytest.mark.parametrize(("written", "meant"), [("lama", "llama"), ("Qwen2", "qwen2"), ("mixtrall", "mixtral")])
def test_a_misspelt_family_gets_the_nearest(written: str, meant: str) -> None:
    with pytest.raises(UserError) as refused:
        model_shape({"model_type": written, **SMALL})
    assert f"`model_type: {meant}`" in refused.value.fix


NO_SIZES = ("max_position_embeddings", "tie_word_embeddings")
WORDS = [word for name in ELSEWHERE if name not in NO_SIZES for word in (name, *ELSEWHERE[name])]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_size_s_other_names_are_those_that_transformers_leaves_unread(family: str) -> None:
    """A word is refused, or transformers takes it; and then so does the planner."""
    before, known = AutoConfig.for_model(family).to_dict(), FAMILIES[family]
    for word in WORDS:
        if NAME_OF[word] not in known.defaults or (NAME_OF[word] == "num_key_value_heads" and not known.grouped):
            continue
        size = 9216 if NAME_OF[word] == "hidden_size" else 48  # nobody's default
        try:
            after = AutoConfig.for_model(family, **{word: size}).to_dict()
        except Exception:  # of sizes that do not go together: so it was read
            continue
        read = any(after.get(key) != value for key, value in before.items())
        refused = foreign_keys({"model_type": family, word: size})
        assert not (read and refused), f"{word} is a key of {family}"
        if not read:
            assert refused, f"{word} is no key of {family}"
            assert next(iter(refused.values())) in {*before, *AutoConfig.for_model(family).attribute_map}


def test_a_key_of_another_family() -> None:
    assert foreign_keys({"model_type": "qwen2", "n_heads": 4, "d_model": 64, "n_layer": 2, "ffn_dim": 9}) == {
        "n_heads": "num_attention_heads",
        "d_model": "hidden_size",
        "n_layer": "num_hidden_layers",
        "ffn_dim": "intermediate_size",
    }
    assert foreign_keys({"model_type": "gpt2", "n_heads": 4, "num_hidden_layers": 2}) == {"n_heads": "n_head"}
    beside = {"model_type": "qwen2", "num_attention_heads": 8, "n_heads": 4}
    assert foreign_keys(beside) == misspelt_keys(beside) == {}
    assert misspelt_keys({"model_type": "qwen2", "n_haed": 4}) == {}
    assert misspelt_keys({"model_type": "qwen2", "Hidden_Size": 4}) == {"Hidden_Size": "hidden_size"}
    assert foreign_keys({"model_type": "qwen2", "tie_embeddings": True}) == {"tie_embeddings": "tie_word_embeddings"}
    assert idle_notes({"model_type": "qwen2", "foo": 1, "vocab_size": 9}, "it") == ("it: foo means nothing to qwen2",)
    assert misspelt_keys({"model_type": "opt", "ffn_dimm": 4}) == {"ffn_dimm": "ffn_dim"}
    assert misspelt_keys({"model_type": "llama", "ffn_dimm": 4}) == {"ffn_dimm": "intermediate_size"}


SIZES_OF: dict[str, dict[str, Any]] = {
    family: {key: value for key, value in OWN.get(family, SMALL).items() if key != "rotary_dim"} for family in FAMILIES
}
NONSENSE: st.SearchStrategy[Any] = st.sampled_from([0, -4, "4", 1 << 30, True, 2.5, [1]])


@given(data=st.data(), family=st.sampled_from(sorted(FAMILIES)), heads=st.integers(1, 24), each=st.integers(1, 24))
def test_what_is_offered_for_nonsense_is_accepted(data: st.DataObject, family: str, heads: int, each: int) -> None:
    """A model that can be, of any family, with one of its sizes made nonsense."""
    config = {"model_type": family, **SIZES_OF[family]}
    config |= dict.fromkeys([key for key in ("n_embd", "hidden_size") if key in config], heads * 2 * each)
    config |= dict.fromkeys([key for key in ("n_head", "num_attention_heads") if key in config], heads)
    kv_heads = data.draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    config |= dict.fromkeys([key for key in ("num_key_value_heads", "num_kv_heads") if key in config], kv_heads)
    config |= data.draw(st.sampled_from([{}, {"new_decoder_architecture": True}])) if family == "falcon" else {}
    config |= data.draw(st.sampled_from([{}, {"head_dim": 16}]))
    model_shape(config)
    key = data.draw(st.sampled_from([key for key, value in config.items() if type(value) is int]))
    try:
        model_shape(config | {key: data.draw(NONSENSE)})
    except UserError as refused:
        model_shape(config | {key: int(value) for key, value in re.findall(r"`(\w+): (\d+)`", refused.fix)})


@given(data=st.data(), heads=st.integers(1, 24), each=st.integers(1, 24))
def test_what_is_offered_for_a_typed_nonsense_is_accepted(data: st.DataObject, heads: int, each: int) -> None:
    typed: dict[str, float] = {"layers": 2, "hidden": heads * 2 * each, "heads": heads, "ffn": 128, "vocab": 100}
    kv_heads = data.draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    more = {"kv_heads": kv_heads, "head_dim": 16, "window": 9, "tied": 1, "gated": 0}
    typed |= {name: more[name] for name in data.draw(st.sets(st.sampled_from(sorted(more))))}
    typed |= data.draw(st.sampled_from([{}, {"experts": 4, "experts_per_token": 3}, {"experts": 12}]))
    typed |= {"params": given_shape(typed).parameters} if data.draw(st.booleans()) and typed["layers"] == 2 else {}
    name = data.draw(st.sampled_from(sorted(typed)))
    with pytest.raises(UserError) as caught:
        given_shape(typed | {name: data.draw(st.sampled_from([-1, 2.5, float("inf"), float("nan"), 1e40]))})
    (offered,) = re.findall(rf"`{name}=(\d+)`", caught.value.fix)
    given_shape(typed | {name: float(offered)})


@pytest.mark.parametrize("sizes", [{"hidden_size": 60, "num_attention_heads": 4}, {"head_dim": 15}])
def test_a_head_that_rotary_embeddings_cannot_turn_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"pairs|twice") as refused:
        model_shape({"model_type": "llama", **SMALL, **sizes})
    mended = {key: int(value) for key, value in re.findall(r"`(\w+): (\d+)`", refused.value.fix)}
    assert model_shape({"model_type": "llama", **SMALL, **sizes, **mended}).head_dim % 2 == 0
    assert model_shape({"model_type": "gpt2", **GPT2, "n_embd": 60, "n_head": 4}).head_dim == 15


def test_a_typed_width_is_a_multiple_of_the_heads() -> None:
    with pytest.raises(UserError) as caught:
        given_shape({"layers": 2, "hidden": 0, "heads": 48, "ffn": 128, "vocab": 100})
    assert caught.value.fix == "write for example `hidden=4128`"


def test_a_falcon_that_transformers_cannot_run_is_refused() -> None:
    """Its older architecture without multi_query reads as many heads of keys as of queries, whatever it was built
    with."""
    config = {"model_type": "falcon", **OWN["falcon"], "multi_query": False, "num_kv_heads": 2}
    with pytest.raises(UserError, match=r"num_kv_heads must be as many as num_attention_heads \(4\)") as caught:
        model_shape(config)
    assert caught.value.fix == "write for example `num_kv_heads: 4`"
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    with pytest.raises(RuntimeError):
        model(torch.zeros((1, 4), dtype=torch.long))
