"""Keys of a config.json that mean nothing to its family: transformers takes any key, and builds another model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from warpbeam.plan.families import FAMILIES, Family

NEAR: Final = 0.85  # likeness from which a key is another one misspelt
NEAR_FAMILY: Final = 0.8
# Keys of a config.json that decide a model, over all families: to find a misspelt one.
CONFIG_KEYS: Final = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings", "hidden_act"),
    *("hidden_activation", "activation_function", "initializer_range", "use_cache", "architectures", "torch_dtype"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta", "rope_scaling"),
    *("rope_parameters", "rotary_pct", "rotary_emb_base", "partial_rotary_factor", "attention_bias", "mlp_bias"),
    *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "resid_dropout"),
    *("embd_dropout", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "qk_layernorm"),
    *("sliding_window_pattern", "_sliding_window_pattern", "_remove_final_layer_norm"),
    *("num_local_experts", "num_experts_per_tok", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "n_ctx"),
    *("ffn_dim", "word_embed_proj_dim", "enable_bias", "do_layer_norm_before", "layer_norm_elementwise_affine"),
    *("ffn_hidden_size", "num_kv_heads", "multi_query", "new_decoder_architecture", "parallel_attn", "bias", "alibi"),
    *("num_ln_in_parallel_attn", "rotary_dim", "qkv_bias", "num_experts", "moe_intermediate_size"),
    *("shared_expert_intermediate_size", "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"),
    *("router_aux_loss_coef", "output_router_logits", "n_routed_experts", "n_shared_experts", "first_k_dense_replace"),
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_group", "topk_group"),
    *("topk_method", "routed_scaling_factor"),
)
# Our name of a size -> what it is called elsewhere: by other families, in papers, in other libraries.
ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "vocab_size": ("n_vocab", "padded_vocab_size"),
    "hidden_size": ("n_embd", "n_embed", "d_model", "dim", "model_dim", "hidden_dim", "embed_dim", "embedding_size"),
    "num_hidden_layers": ("n_layer", "n_layers", "layers", "num_layers", "num_decoder_layers", "decoder_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "d_inner", "decoder_ffn_dim"),
    "num_key_value_heads": ("num_kv_heads", "n_kv_heads", "n_head_kv", "num_query_groups", "multi_query_group_num"),
    "num_local_experts": ("num_experts", "n_routed_experts", "n_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "experts_per_token", "n_experts_per_tok", "moe_top_k"),
    "moe_intermediate_size": ("moe_ffn_dim", "expert_intermediate_size", "moe_ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "max_sequence_length"),
    "tie_word_embeddings": ("tie_embeddings", "tied_embeddings", "tie_weights", "share_embeddings", "tied"),
}
# Keys of transformers' configurations that change no size.
SIZELESS: Final = (
    *("_name_or_path", "activation", "add_cross_attention", "attn_implementation", "attn_logit_softcapping"),
    *("auto_map", "chunk_size_feed_forward", "classifier_dropout", "dropout", "dtype", "final_logit_softcapping"),
    *("id2label", "init_std", "is_decoder", "is_encoder_decoder", "label2id", "layerdrop", "num_nextn_predict_layers"),
    *("original_max_position_embeddings", "output_attentions", "output_hidden_states", "pretraining_tp"),
    *("problem_type", "qk_head_dim", "quantization_config", "query_pre_attn_scalar", "reorder_and_upcast_attn"),
    *("return_dict", "rope_interleave", "router_jitter_noise", "scale_attn_by_inverse_layer_idx", "scale_attn_weights"),
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    *("transformers_version", "use_bidirectional_attention", "use_parallel_residual", "task_specific_params"),
    *("ep_size", "moe_layer_freq", "scoring_func", "seq_aux", "aux_loss_alpha"),
    *("apply_residual_connection_post_layernorm",),
)
NAME_OF: Final = {word: name for name, words in ELSEWHERE.items() for word in (name, *words)}


def foreign_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Key -> what this family calls it, of keys that are a size's name elsewhere, where the config lacks that size."""
    family = _family(config)
    if family is None:
        return {}
    sizes = ((key, NAME_OF[key]) for key in config if key in NAME_OF and _has(family, NAME_OF[key]))
    return {key: _own(family, name) for key, name in sizes if not any(k in config for k in _taken(family, name))}


def misspelt_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Key -> what was meant, as this family calls it."""
    family = _family(config)
    if family is None:
        return {}
    unknown = (key for key in config if key not in CONFIG_KEYS and key not in NAME_OF)
    near = {key: difflib.get_close_matches(key.lower(), CONFIG_KEYS, n=1, cutoff=NEAR) for key in unknown}
    return {key: _here(family, found[0]) for key, found in near.items() if found}


def idle_notes(config: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """What a person should know of keys that decide nothing, in a config that a person wrote; `where` it was read."""
    if _family(config) is None or "transformers_version" in config:
        return ()
    known = {*CONFIG_KEYS, *SIZELESS, *NAME_OF}
    idle = ", ".join(key for key in config if key not in known)
    return (f"{where}: {idle} means nothing to {config['model_type']}",) if idle else ()


def nearest_family(name: object) -> str | None:
    """The family that a misspelt `model_type` may mean. Not one that only resembles it: `llama4` is no `llama`."""
    written = str(name).lower()
    found = difflib.get_close_matches(written, FAMILIES, n=1, cutoff=NEAR_FAMILY)
    return found[0] if found and _digits(found[0]) == _digits(written) else None


def _digits(name: str) -> str:
    return "".join(letter for letter in name if letter.isdigit())


def _family(config: Mapping[str, Any]) -> Family | None:
    name = config.get("model_type")
    return FAMILIES.get(name) if isinstance(name, str) else None


def _own(family: Family, name: str) -> str:
    return (family.names or {}).get(name, name)


def _taken(family: Family, name: str) -> set[str]:
    """The keys that say this size."""
    return {_own(family, name), *(key for key, ours in (family.aliases or {}).items() if ours == name)}


def _has(family: Family, name: str) -> bool:
    """Whether this family has such a size at all."""
    if name == "tie_word_embeddings":
        return True
    return name in family.defaults and (family.grouped or name != "num_key_value_heads")


def _here(family: Family, key: str) -> str:
    """`n_head` of a family that calls it num_attention_heads."""
    name = NAME_OF.get(key)
    return key if name is None or not _has(family, name) or key in _taken(family, name) else _own(family, name)
