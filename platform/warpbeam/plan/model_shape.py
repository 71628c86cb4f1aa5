"""A model's shape and exact parameter count from its Hugging Face config.json, without building it.

The counts equal what transformers builds (tests/unit/plan/test_model_shape.py builds each family on the meta device);
what a config leaves out takes the family's default in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from warpbeam.errors import UserError


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


_GEMMA2: Final = _sizes(256_000, 2304, 26, 8, 4, 9216) | {"tie_word_embeddings": True}

FAMILIES: Final[dict[str, Family]] = {
    "llama": Family(defaults=_sizes(32_000, 4096, 32, 32, None, 11_008), qkv_bias=None, out_bias=None, mlp_bias=None),
    "mistral": Family(defaults=_sizes(32_000, 4096, 32, 32, 8, 14_336)),
    "mixtral": Family(
        defaults=_sizes(32_000, 4096, 32, 32, 8, 14_336) | {"num_local_experts": 8, "num_experts_per_tok": 2}
    ),
    "qwen2": Family(defaults=_sizes(151_936, 4096, 32, 32, 32, 22_016), qkv_bias=True),
    "qwen3": Family(
        defaults=_sizes(151_936, 4096, 32, 32, 32, 22_016),
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
    "gemma2": Family(defaults=_GEMMA2, norms=4, qkv_bias=None, out_bias=None, fixed_head_dim=256),
    "gemma3_text": Family(
        defaults=_GEMMA2 | {"vocab_size": 262_208},
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
    "phi3": Family(defaults=_sizes(32_064, 3072, 32, 32, None, 8192)),
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
        names={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
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
}


# Keys of a config.json that decide a model, over all families: to find a misspelt one.
CONFIG_KEYS: Final = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings", "hidden_act"),
    *("hidden_activation", "activation_function", "initializer_range", "use_cache", "architectures", "torch_dtype"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta", "rope_scaling"),
    *("rope_parameters", "rotary_pct", "rotary_emb_base", "partial_rotary_factor", "attention_bias", "mlp_bias"),
    *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "resid_dropout"),
    *("embd_dropout", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "qk_layernorm"),
    *("num_local_experts", "num_experts_per_tok", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "n_ctx"),
)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a causal language model.

    Attributes:
        parameters: all of them, a tied embedding once.
        positions: the longest sequence it is made for (max_position_embeddings); None where the config does not say.
        learned_positions: each position has a parameter, so a longer sequence is impossible rather than unwise.
        active_parameters: those one token passes through (fewer in a mixture of experts).
        layer_parameters: of one layer, experts included: what ZeRO-3 gathers at a time.
    """

    family: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    tied: bool
    positions: int | None
    learned_positions: bool
    experts: int
    experts_per_token: int
    gated: bool
    parameters: int
    active_parameters: int
    layer_parameters: int

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


def is_known(config: Mapping[str, Any]) -> bool:
    """Whether `model_shape` can count this model."""
    return config.get("model_type") in FAMILIES


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape a config.json describes. Raises UserError for an unknown family or an impossible size."""
    if not is_known(config):
        raise UserError(
            f"the planner does not know the model family {config.get('model_type')!r}",
            fix=f"it knows {', '.join(FAMILIES)}",
            reason="unknown_model_family",
        )
    family = FAMILIES[config["model_type"]]
    get = _Getter(config, family)
    hidden, heads = get.size("hidden_size"), get.size("num_attention_heads")
    kv_heads = get.size("num_key_value_heads", default=heads) if family.grouped else heads
    head_dim = get.size("head_dim", default=family.fixed_head_dim or hidden // heads)
    if "head_dim" not in config and family.fixed_head_dim is None and hidden % heads:
        raise _impossible(
            "hidden_size", hidden, f"a multiple of num_attention_heads ({heads})", hidden // heads * heads or heads
        )
    if heads % kv_heads:
        raise _impossible("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})", heads)
    intermediate = get.size("intermediate_size", default=4 * hidden)
    experts = get.size("num_local_experts", default=1) if "num_local_experts" in family.defaults else 1
    experts_per_token = get.size("num_experts_per_tok") if experts > 1 else 1

    attention = _attention(get, family, hidden, heads * head_dim, kv_heads * head_dim, head_dim)
    mlp = _mlp(get, family, hidden, intermediate)
    norm = hidden * (2 if family.norm_bias else 1)
    router = experts * hidden if experts > 1 else 0
    layer = attention + router + family.norms * norm
    layers, vocab, tied = get.size("num_hidden_layers"), get.size("vocab_size"), get.flag("tie_word_embeddings")
    outside = vocab * hidden * (1 if tied else 2) + norm + (vocab if family.head_bias else 0)
    if family.learned_positions:
        outside += get.size("max_position_embeddings") * hidden
    return ModelShape(
        family=config["model_type"],
        vocab_size=vocab,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate,
        tied=tied,
        positions=get.size("max_position_embeddings") if get.value("max_position_embeddings") is not None else None,
        learned_positions=family.learned_positions,
        experts=experts,
        experts_per_token=experts_per_token,
        gated=family.gated,
        parameters=outside + layers * (layer + experts * mlp),
        active_parameters=outside + layers * (layer + experts_per_token * mlp),
        layer_parameters=layer + experts * mlp,
    )


def flops_per_token_6n(shape: ModelShape) -> int:
    """6N: two operations a parameter forward, four backward; N as in Kaplan et al. but with the (tied) embedding, whose
    output product is real work."""
    return 6 * shape.active_parameters


def flops_per_token(shape: ModelShape, seq_len: int) -> int:
    """6N + 12 L H s: with attention's scores and values over `seq_len` tokens (PaLM, appendix B; H = heads x head_dim).

    The causal half is not taken off, as published MFU figures do not.
    """
    return flops_per_token_6n(shape) + 12 * shape.layers * shape.query_size * seq_len


def _attention(get: _Getter, family: Family, hidden: int, query: int, kv: int, head_dim: int) -> int:
    count = hidden * (query + 2 * kv) + query * hidden
    if get.bias(family.qkv_bias, "attention_bias"):
        count += query + 2 * kv
    if get.bias(family.out_bias, "attention_bias"):
        count += hidden
    if family.qk_norm:
        count += 2 * head_dim
    elif get.flag("qk_layernorm"):
        count += 4 * head_dim
    return count


def _mlp(get: _Getter, family: Family, hidden: int, intermediate: int) -> int:
    wide = 2 if family.gated else 1
    count = (wide + 1) * hidden * intermediate
    if get.bias(family.mlp_bias, "mlp_bias"):
        count += wide * intermediate + hidden
    return count


def _impossible(key: str, value: object, wanted: str, write: object) -> UserError:
    return UserError(
        f"model.config.{key} must be {wanted}, it is {value}",
        fix=f"write for example `{key}: {write}`",
        reason="bad_model_shape",
    )


class _Getter:
    """Reads a config's values by our names, with the family's defaults."""

    def __init__(self, config: Mapping[str, Any], family: Family) -> None:
        self.config, self.family = config, family

    def value(self, name: str) -> Any:
        own = (self.family.names or {}).get(name, name)
        for key in (own, name):  # transformers accepts the common name too
            if key in self.config:
                return self.config[key]
        return self.family.defaults.get(name)

    def size(self, name: str, default: int | None = None) -> int:
        value = self.value(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _impossible(name, value, "a whole number, 1 or more", self.family.defaults.get(name) or 1)
        return value

    def flag(self, name: str) -> bool:
        return bool(self.value(name))

    def bias(self, fixed: bool | None, key: str) -> bool:
        return self.flag(key) if fixed is None else fixed
