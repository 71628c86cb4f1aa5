"""A model's shape and exact parameter count from its Hugging Face config.json, without building it.

The counts equal what transformers builds (tests/unit/plan/test_model_shape.py builds each family on the meta device);
what a config leaves out takes the family's default in transformers (plan/families.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from warpbeam.errors import UserError
from warpbeam.plan.attention_window import attention_window
from warpbeam.plan.config_keys import foreign_keys, misspelt_keys, nearest_family
from warpbeam.plan.config_values import ConfigValues, ImpossibleSize
from warpbeam.plan.families import FAMILIES, Family
from warpbeam.plan.head_sizes import near_sizes, nearest_heads

__all__ = [
    "FAMILIES",
    "ModelShape",
    "default_notes",
    "defaults_taken",
    "is_known",
    "model_shape",
]

DECIDING: Final = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"),
    *("num_local_experts", "num_experts_per_tok", "moe_intermediate_size"),  # where the family has them
)
RELATED: Final = (*DECIDING, "num_key_value_heads")  # sizes that decide what others may be
INLINE_EXAMPLE: Final = "layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256"


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a causal language model.

    Attributes:
        head_dim: of queries, keys and values; their mean where keys and values differ (MLA).
        intermediate_size: width of the MLP, or of one expert.
        parameters: all of them, a tied embedding once.
        positions: the longest sequence it is made for (max_position_embeddings); None where the config does not say.
        learned_positions: each position has a parameter, so a longer sequence is impossible rather than unwise.
        active_parameters: those one token passes through (fewer in a mixture of experts).
        layer_parameters: of one layer (one with experts, all of them included): what ZeRO-3 gathers at a time.
        shared_intermediate_size: width of the expert that every token uses beside its own; 0 where there is none.
        dense_layers: layers of a mixture of experts that have one plain MLP instead.
        window: tokens that a token sees in the layers with a sliding window; None where no layer has one.
        windowed_layers: how many these are.
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
    shared_intermediate_size: int = 0
    dense_layers: int = 0
    window: int | None = None
    windowed_layers: int = 0

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


def is_known(config: Mapping[str, Any]) -> bool:
    """Whether `model_shape` can count this model."""
    family = config.get("model_type")
    return isinstance(family, str) and family in FAMILIES


def defaults_taken(config: Mapping[str, Any]) -> dict[str, int]:
    """Key -> the family's default, of the sizes that decide a model and that this config does not say."""
    family = FAMILIES[config["model_type"]]
    get = ConfigValues(config, family)
    found = {name: family.defaults.get(name) for name in DECIDING}
    found["head_dim"] = family.fixed_head_dim
    if _says_kv_heads(get, family):
        found["num_key_value_heads"] = family.defaults["num_key_value_heads"] or get.size("num_attention_heads")
    return {get.key(name): size for name, size in found.items() if size is not None and get.key(name) not in config}


def default_notes(config: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """What a person should know of a config that leaves sizes out; `where` it was read."""
    family = config["model_type"]
    return tuple(
        f"{where} says no {key}: planned with {default:,}, the default of {family}"
        for key, default in defaults_taken(config).items()
    )


def _says_kv_heads(get: ConfigValues, family: Family) -> bool:
    """Whether heads of keys and values are a size of their own; of Falcon's architectures in the newer one only."""
    if not family.grouped or family.latent_attention:
        return False
    return "multi_query" not in family.defaults or get.flag("new_decoder_architecture")


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape a config.json describes. Raises UserError for an unknown family or an impossible size, with one that
    goes with the others where there is such."""
    if not is_known(config):
        raise _unknown(config)
    try:
        return _shape(config)
    except UserError as error:
        refused = error
    if meant := foreign_keys(config) | misspelt_keys(config):  # a default stands where they were to stand
        refused.fix = "write " + " and ".join(f"`{own}` instead of `{key}`" for key, own in meant.items())
    elif isinstance(refused, ImpossibleSize) and refused.usual is not None:
        get = ConfigValues(config, FAMILIES[config["model_type"]])
        key, types = get.key(refused.name), get.value("layer_types")
        others = get.known(RELATED) | ({"layer_types": len(types)} if isinstance(types, list) else {})
        sizes = near_sizes(refused.name, refused.usual, others)
        accepted = (size for size in sizes if _is_possible({**config, key: size}))
        refused.fix = f"write for example `{key}: {next(accepted, refused.usual)}`"
    raise refused


def _is_possible(config: Mapping[str, Any]) -> bool:
    try:
        _shape(config)
    except UserError:
        return False
    return True


def _shape(config: Mapping[str, Any]) -> ModelShape:
    family = FAMILIES[config["model_type"]]
    get = ConfigValues(config, family)
    hidden, heads = get.size("hidden_size"), get.size("num_attention_heads")
    kv_heads = _kv_heads(get, family, heads)
    _check_heads(get, family, hidden, heads, kv_heads)
    head_dim = _head_dim(get, family, hidden, heads)
    attention = (
        _latent_attention(get, family, hidden, heads)
        if family.latent_attention
        else _attention(get, family, hidden, heads * head_dim, kv_heads * head_dim, head_dim)
    )
    norm = 0 if get.value("layer_norm_elementwise_affine") is False else hidden * (2 if family.norm_bias else 1)
    outer = attention + _norms(get, family) * norm
    mixture = _Mixture(get, family, hidden)
    layers, vocab, tied = get.size("num_hidden_layers"), get.size("vocab_size"), get.flag("tie_word_embeddings")
    positions = None if get.value("max_position_embeddings") is None else get.size("max_position_embeddings")
    dense = mixture.dense_layers(layers)
    outside = _outside(get, family, hidden, vocab, tied, norm)
    window, windowed = attention_window(get, layers)
    apart = outside + layers * outer + dense * mixture.dense_mlp
    return ModelShape(
        family=config["model_type"],
        vocab_size=vocab,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=mixture.width,
        tied=tied,
        positions=positions,
        learned_positions=family.learned_positions,
        experts=mixture.experts,
        experts_per_token=mixture.per_token,
        gated=family.gated,
        parameters=apart + (layers - dense) * mixture.parameters(mixture.experts),
        active_parameters=apart + (layers - dense) * mixture.parameters(mixture.per_token),
        layer_parameters=outer + (mixture.parameters(mixture.experts) if dense < layers else mixture.dense_mlp),
        shared_intermediate_size=mixture.shared_width,
        dense_layers=dense if mixture.experts > 1 else 0,
        window=window,
        windowed_layers=windowed,
    )


def _unknown(config: Mapping[str, Any]) -> UserError:
    near = nearest_family(config.get("model_type"))
    meant = f"did you mean `model_type: {near}`? Or " if near else ""
    return UserError(
        f"the planner does not know the model family {config.get('model_type')!r}",
        why=f"it knows {', '.join(FAMILIES)}",
        fix=f"{meant}give the numbers it needs: `warpbeam plan --model {INLINE_EXAMPLE} ...`",
        reason="unknown_model_family",
    )


def _kv_heads(get: ConfigValues, family: Family, heads: int) -> int:
    if not family.grouped or family.latent_attention:
        return heads
    if get.flag("multi_query") and not get.flag("new_decoder_architecture"):
        return 1  # falcon
    kv_heads = get.size("num_key_value_heads", default=heads)
    if "multi_query" in family.defaults and not get.flag("new_decoder_architecture") and kv_heads != heads:
        wanted = f"as many as {get.key('num_attention_heads')} ({heads}) where neither multi_query nor"
        raise get.impossible("num_key_value_heads", kv_heads, f"{wanted} new_decoder_architecture is true", heads)
    return kv_heads


def _check_heads(get: ConfigValues, family: Family, hidden: int, heads: int, kv_heads: int) -> None:
    """Raises UserError naming all that does not divide, as the file names it."""
    divides = family.latent_attention or family.fixed_head_dim is not None or get.value("head_dim") is not None
    names = {"hidden_size": hidden, "num_key_value_heads": kv_heads}
    pairs = _turns_pairs(get, family)
    near = nearest_heads(None if divides else hidden, heads, kv_heads, pairs=pairs)
    legal = dict(zip(names, near, strict=True))
    wrong = [name for name, value in legal.items() if value is not None]

    def unsaid(name: str) -> str:
        return "" if get.key(name) in get.config else f" by {get.config['model_type']}'s default"

    if wrong:
        by = get.key("num_attention_heads")
        multiple = f"a multiple of twice {by} ({2 * heads})" if pairs else f"a multiple of {by} ({heads})"
        of = {"hidden_size": multiple, "num_key_value_heads": f"a divisor of {by} ({heads})"}
        raise UserError(
            " and ".join(f"model.config.{get.key(n)} must be {of[n]}, it is {names[n]}{unsaid(n)}" for n in wrong),
            why="rotary embeddings turn the elements of a head in pairs" if pairs and "hidden_size" in wrong else "",
            fix="write for example " + " and ".join(f"`{get.key(n)}: {legal[n]}`" for n in wrong),
            reason="bad_model_shape",
        )


def _head_dim(get: ConfigValues, family: Family, hidden: int, heads: int) -> int:
    if family.latent_attention:
        key = get.size("qk_nope_head_dim") + get.size("qk_rope_head_dim")
        return (key + get.size("v_head_dim")) // 2
    width = get.size("head_dim", default=family.fixed_head_dim or hidden // heads)
    if width % 2 and _turns_pairs(get, family):
        raise get.impossible("head_dim", width, "even, as rotary embeddings turn pairs", width + 1)
    return width


def _turns_pairs(get: ConfigValues, family: Family) -> bool:
    """Whether positions are rotary embeddings."""
    return not family.learned_positions and not get.flag("alibi")


def _norms(get: ConfigValues, family: Family) -> int:
    """Norms of a layer; falcon's parallel attention shares one with the MLP, unless the config asks for two."""
    if not get.flag("parallel_attn"):
        return family.norms
    asked = get.count("num_ln_in_parallel_attn")
    return 2 if asked == 2 or (asked is None and get.flag("new_decoder_architecture")) else 1


def _outside(get: ConfigValues, family: Family, hidden: int, vocab: int, tied: bool, norm: int) -> int:
    """Embeddings, positions, the last norm and the output."""
    narrow = get.size("word_embed_proj_dim", default=hidden)
    count = vocab * narrow * (1 if tied else 2) + (vocab if family.head_bias else 0)
    if narrow != hidden:
        count += 2 * narrow * hidden
    # Post-norm models (OPT-350M) end with their last layer's; checkpoints of before transformers 4.20.1 may have none.
    if get.value("do_layer_norm_before") is not False and not get.flag("_remove_final_layer_norm"):
        count += norm
    if family.learned_positions:
        count += (get.size("max_position_embeddings") + family.extra_positions) * hidden
    return count


def _attention(get: ConfigValues, family: Family, hidden: int, query: int, kv: int, head_dim: int) -> int:
    count = hidden * (query + 2 * kv) + query * hidden
    if get.bias(family.qkv_bias, family.bias_key):
        count += query + 2 * kv
    if get.bias(family.out_bias, family.bias_key):
        count += hidden
    if family.qk_norm:
        count += 2 * head_dim
    elif get.flag("qk_layernorm"):
        count += 4 * head_dim
    return count


def _latent_attention(get: ConfigValues, family: Family, hidden: int, heads: int) -> int:
    """MLA: down to a latent, its norm, up to the heads; keys' rotary part beside it (DeepSeek-V2, section 2.1)."""
    nope, rope, value = get.size("qk_nope_head_dim"), get.size("qk_rope_head_dim"), get.size("v_head_dim")
    latent, biased = get.size("kv_lora_rank"), get.bias(family.qkv_bias, family.bias_key)
    key = heads * (nope + rope)
    down = latent + rope
    count = hidden * down + latent + latent * heads * (nope + value) + heads * value * hidden
    count += (down + hidden) if biased else 0
    if get.value("q_lora_rank") is None:
        return count + hidden * key
    rank = get.size("q_lora_rank")
    return count + hidden * rank + rank + rank * key + (rank if biased else 0)


def _mlp(get: ConfigValues, family: Family, hidden: int, intermediate: int, *, biases: bool = True) -> int:
    wide = 2 if family.gated else 1
    count = (wide + 1) * hidden * intermediate
    key = family.bias_key if family.bias_key in ("enable_bias", "bias") else "mlp_bias"
    if biases and get.bias(family.mlp_bias, key):
        count += wide * intermediate + hidden
    return count


class _Mixture:
    """The MLPs of the layers: one, or experts with a router and perhaps one that every token uses."""

    def __init__(self, get: ConfigValues, family: Family, hidden: int) -> None:
        wide = get.size("intermediate_size", default=4 * hidden)
        self._get, self._family = get, family
        self.dense_mlp = _mlp(get, family, hidden, wide)
        self.experts = get.size("num_local_experts") if family.experts != "none" else 1
        self.per_token = get.size("num_experts_per_tok") if self.experts > 1 else 1
        if self.per_token > self.experts:
            raise get.impossible(
                "num_experts_per_tok", self.per_token, f"at most the {self.experts} experts", self.experts
            )
        self.width = get.size("moe_intermediate_size", default=wide) if family.experts != "none" else wide
        self.shared_width = 0
        self._beside = hidden * self.experts if family.experts != "none" else 0  # the router
        if family.experts == "shared":
            own = get.count("n_shared_experts")
            self.shared_width = own * self.width if own is not None else get.size("shared_expert_intermediate_size")
            self._beside += _mlp(get, family, hidden, self.shared_width)
            self._beside += hidden if own is None else 0  # qwen2_moe weighs its shared expert by a gate
        self._expert = _mlp(get, family, hidden, self.width, biases=family.experts == "none")
        if family.experts == "all" and self.experts == 1:
            self._beside = hidden

    def parameters(self, experts: int) -> int:
        """Of one layer's MLPs, `experts` of them counted."""
        return self._beside + experts * self._expert

    def dense_layers(self, layers: int) -> int:
        """Layers without experts; all of them in a dense model."""
        if self._family.experts == "none":
            return layers
        first = self._get.count("first_k_dense_replace")
        if first is not None:
            return min(first, layers)
        plain, every = self._get.numbers("mlp_only_layers"), self._get.size("decoder_sparse_step", default=1)
        return sum(1 for layer in range(layers) if layer in plain or (layer + 1) % every)
