"""The model families whose parameters we can count: what distinguishes one architecture from another, as data.

Defaults are those of transformers' configurations, so that a config.json that leaves a key out means the same here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

# Which layers see a sliding window. every: all; switched: all where `use_sliding_window`; upper: so, from
# max_window_layers on; alternate_lower: so, each second one below it; alternate: each second one; pattern: all but each
# n-th. `layer_types` says it layer by layer, where a family has that key.
WindowRule = Literal["none", "every", "switched", "upper", "alternate_lower", "alternate", "pattern"]


@dataclass(frozen=True, kw_only=True)
class Family:
    """What distinguishes one architecture's parameters from another's. None for a bias: the config says."""

    defaults: Mapping[str, Any]
    gated: bool = True  # three matrices in the MLP, else two
    norms: int = 2  # in a layer, each of hidden_size
    norm_bias: bool = False
    qkv_bias: bool | None = False
    out_bias: bool | None = False
    mlp_bias: bool | None = False
    head_bias: bool = False
    qk_norm: bool = False
    learned_positions: bool = False
    grouped: bool = True  # keys and values may have fewer heads than queries
    fixed_head_dim: int | None = None  # where it does not follow from hidden_size / heads
    names: Mapping[str, str] | None = None  # our name -> the config's, where it differs
    aliases: Mapping[str, str] | None = None  # what transformers takes in a key's place -> our name
    bias_key: str = "attention_bias"  # of the config, for the biases that it decides
    experts: Literal["none", "all", "sparse", "shared"] = "none"  # all: every layer; shared: with one that all use
    latent_attention: bool = False  # MLA: queries and keys through low-rank latents (DeepSeek-V2, section 2.1)
    extra_positions: int = 0  # rows of the position table beyond max_position_embeddings
    window: WindowRule = "none"


def _sizes(
    vocab: int, hidden: int, layers: int, heads: int, kv_heads: int | None, intermediate: int | None
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
    }


_GEMMA2: Final = _sizes(256_000, 2304, 26, 8, 4, 9216) | {"tie_word_embeddings": True, "sliding_window": 4096}
_QWEN_WINDOW: Final = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}

_GPT2_NAMES: Final = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}

_GPT2_ALIASES: Final = {name: name for name in _GPT2_NAMES if name != "intermediate_size"}
_EXPERT_ALIASES: Final = {"num_experts": "num_local_experts", "num_local_experts": "num_local_experts"}

FAMILIES: Final[dict[str, Family]] = {
    "llama": Family(defaults=_sizes(32_000, 4096, 32, 32, None, 11_008), qkv_bias=None, out_bias=None, mlp_bias=None),
    "mistral": Family(defaults=_sizes(32_000, 4096, 32, 32, 8, 14_336) | {"sliding_window": 4096}, window="every"),
    "mixtral": Family(
        defaults=_sizes(32_000, 4096, 32, 32, 8, 14_336) | {"num_local_experts": 8, "num_experts_per_tok": 2},
        experts="all",
        aliases=_EXPERT_ALIASES,
        window="every",
    ),
    "qwen2": Family(defaults=_sizes(151_936, 4096, 32, 32, 32, 22_016) | _QWEN_WINDOW, qkv_bias=True, window="upper"),
    "qwen3": Family(
        defaults=_sizes(151_936, 4096, 32, 32, 32, 22_016) | _QWEN_WINDOW,
        window="upper",
        qkv_bias=None,
        out_bias=None,
        qk_norm=True,
        fixed_head_dim=128,
    ),
    "gemma": Family(
        defaults=_sizes(256_000, 3072, 28, 16, 16, 24_576) | {"tie_word_embeddings": True},
        qkv_bias=None,
        out_bias=None,
        fixed_head_dim=256,
    ),
    "gemma2": Family(
        defaults=_GEMMA2,
        norms=4,
        qkv_bias=None,
        out_bias=None,
        fixed_head_dim=256,
        window="alternate",
    ),
    "gemma3_text": Family(
        defaults=_GEMMA2 | {"vocab_size": 262_208, "sliding_window_pattern": 6},
        window="pattern",
        norms=4,
        qkv_bias=None,
        out_bias=None,
        qk_norm=True,
        fixed_head_dim=256,
    ),
    "phi": Family(
        defaults=_sizes(51_200, 2048, 24, 32, None, 8192),
        gated=False,
        norms=1,
        norm_bias=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
    ),
    "phi3": Family(defaults=_sizes(32_064, 3072, 32, 32, None, 8192), window="every"),
    "gpt2": Family(
        defaults=_sizes(50_257, 768, 12, 12, None, None)
        | {"tie_word_embeddings": True, "max_position_embeddings": 1024},
        gated=False,
        norm_bias=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        learned_positions=True,
        grouped=False,
        names=_GPT2_NAMES,
        aliases=_GPT2_ALIASES,
    ),
    "gpt_neox": Family(
        defaults=_sizes(50_432, 6144, 44, 64, None, 24_576) | {"attention_bias": True},
        gated=False,
        norm_bias=True,
        qkv_bias=None,
        out_bias=None,
        mlp_bias=True,
        grouped=False,
    ),
    "gptj": Family(
        defaults=_sizes(50_400, 4096, 28, 16, None, None) | {"max_position_embeddings": 2048},
        gated=False,
        norms=1,
        norm_bias=True,
        mlp_bias=True,
        head_bias=True,
        grouped=False,
        names=_GPT2_NAMES,
        aliases=_GPT2_ALIASES,
    ),
    "opt": Family(
        defaults=_sizes(50_272, 768, 12, 12, None, 3072)
        | {"tie_word_embeddings": True, "max_position_embeddings": 2048, "enable_bias": True},
        gated=False,
        norm_bias=True,
        qkv_bias=None,
        out_bias=None,
        mlp_bias=None,
        learned_positions=True,
        extra_positions=2,
        grouped=False,
        names={"intermediate_size": "ffn_dim"},
        bias_key="enable_bias",
    ),
    "falcon": Family(
        defaults=_sizes(65_024, 4544, 32, 71, None, None)
        | {"tie_word_embeddings": True, "multi_query": True, "parallel_attn": True},
        gated=False,
        norm_bias=True,
        qkv_bias=None,
        out_bias=None,
        mlp_bias=None,
        names={"intermediate_size": "ffn_hidden_size", "num_key_value_heads": "num_kv_heads"},
        aliases={"n_embed": "hidden_size"},
        bias_key="bias",
    ),
    "qwen2_moe": Family(
        defaults=_sizes(151_936, 2048, 24, 16, 16, 5632)
        | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_local_experts": 60}
        | {"num_experts_per_tok": 4, "qkv_bias": True}
        | _QWEN_WINDOW,
        window="alternate_lower",
        qkv_bias=None,
        names={"num_local_experts": "num_experts"},
        bias_key="qkv_bias",
        experts="shared",
    ),
    "qwen3_moe": Family(
        defaults=_sizes(151_936, 2048, 24, 32, 4, 6144)
        | {"moe_intermediate_size": 768, "num_local_experts": 128, "num_experts_per_tok": 8}
        | {"use_sliding_window": False, "sliding_window": 4096},
        window="switched",
        qkv_bias=None,
        out_bias=None,
        qk_norm=True,
        names={"num_local_experts": "num_experts"},
        aliases=_EXPERT_ALIASES,
        experts="sparse",
    ),
    "deepseek_v2": Family(
        defaults=_sizes(102_400, 4096, 32, 32, None, 11_008)
        | {"moe_intermediate_size": 1407, "num_local_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 0}
        | {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
        | {"v_head_dim": 128, "num_experts_per_tok": 6},  # the paper's; transformers leaves it open
        qkv_bias=None,
        out_bias=None,
        mlp_bias=None,
        names={"num_local_experts": "n_routed_experts"},
        aliases={"num_experts": "num_local_experts"},
        experts="shared",
        latent_attention=True,
    ),
    "deepseek_v3": Family(
        defaults=_sizes(129_280, 7168, 61, 128, None, 18_432)
        | {"moe_intermediate_size": 2048, "num_local_experts": 256, "n_shared_experts": 1, "first_k_dense_replace": 3}
        | {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
        | {"v_head_dim": 128, "num_experts_per_tok": 8},
        qkv_bias=None,
        out_bias=None,
        names={"num_local_experts": "n_routed_experts"},
        aliases={"num_local_experts": "num_local_experts"},
        experts="shared",
        latent_attention=True,
    ),
}
