"""A model's shape from its numbers alone, for models of no family that the planner knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from warpbeam.errors import UserError
from warpbeam.plan.batch import divisors
from warpbeam.plan.model_shape import INLINE_EXAMPLE, MOST_LAYERS, MOST_OF_ANYTHING, ModelShape, model_shape

NEEDED: Final = {  # of a model that belongs to no family we know: our word -> what it is
    "layers": "number of layers",
    "hidden": "width of the residual stream",
    "heads": "attention heads",
    "ffn": "width of the MLP (of one expert)",
    "vocab": "vocabulary entries",
}
OPTIONAL: Final = {
    "kv_heads": "heads of keys and values (default: heads)",
    "head_dim": "width of one head (default: hidden / heads)",
    "gated": "1 where the MLP has three matrices (default), 0 where it has two",
    "tied": "1 where embedding and output share their weights (default: 0)",
    "experts": "experts of a layer (default: 1)",
    "experts_per_token": "experts one token uses (default: 1)",
    "params": "all parameters, when it is known better than this sum",
}
SWITCHES: Final = ("gated", "tied")


def given_shape(numbers: Mapping[str, float]) -> ModelShape:
    """A shape from its numbers alone (NEEDED and OPTIONAL), counted as a Llama of these sizes: no biases, RMS norms.

    Raises UserError naming what is missing, unknown or impossible.
    """
    if lacking := [name for name in NEEDED if name not in numbers]:
        raise UserError(
            f"the shape lacks {', '.join(lacking)}",
            why="; ".join(f"{name}: {NEEDED[name]}" for name in lacking),
            fix=f"write for example `{INLINE_EXAMPLE}`",
            reason="bad_model_shape",
        )
    if unknown := [name for name in numbers if name not in NEEDED and name not in OPTIONAL]:
        known = ", ".join([*NEEDED, *OPTIONAL])
        raise UserError(f"a shape has no {', '.join(unknown)}", fix=f"it has {known}", reason="bad_model_shape")
    sizes = {name: _given_size(name, value) for name, value in numbers.items()}
    experts, used = sizes.get("experts", 1), sizes.get("experts_per_token", 1)
    if used > experts:
        raise UserError(
            f"experts_per_token is {used}, there {'is 1 expert' if experts == 1 else f'are {experts} experts'}",
            fix=f"write `experts_per_token={experts}` or less",
            reason="bad_model_shape",
        )
    _check_heads(sizes)
    config = {
        "model_type": "mixtral" if sizes.get("experts", 1) > 1 else "llama",
        "vocab_size": sizes["vocab"],
        "hidden_size": sizes["hidden"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes.get("kv_heads", sizes["heads"]),
        "intermediate_size": sizes["ffn"],
        "tie_word_embeddings": bool(sizes.get("tied", 0)),
    }
    config |= {"head_dim": sizes["head_dim"]} if "head_dim" in sizes else {}
    if sizes.get("experts", 1) > 1:
        config |= {"num_local_experts": sizes["experts"], "num_experts_per_tok": sizes.get("experts_per_token", 1)}
    counted = model_shape(config)
    plain = 0 if sizes.get("gated", 1) else counted.hidden_size * counted.intermediate_size  # one matrix less
    less = {
        "parameters": counted.parameters - counted.layers * counted.experts * plain,
        "active_parameters": counted.active_parameters - counted.layers * counted.experts_per_token * plain,
        "layer_parameters": counted.layer_parameters - counted.experts * plain,
    }
    scale = sizes["params"] / less["parameters"] if "params" in sizes else 1.0
    counts = {name: round(value * scale) for name, value in less.items()}
    kept = {name: getattr(counted, name) for name in counted.__dataclass_fields__ if name not in counts}
    return ModelShape(**kept | counts | {"family": "given", "gated": not plain})


def _check_heads(sizes: Mapping[str, int]) -> None:
    """Width and heads that do not divide, together: what is offered must not be refused in its turn."""
    heads, hidden = sizes["heads"], sizes["hidden"]
    kv_heads = sizes.get("kv_heads", heads)
    wrong, legal = [], []
    if "head_dim" not in sizes and hidden % heads:
        wrong.append(f"hidden {hidden} is no multiple of heads {heads}")
        legal.append(f"hidden={max(1, round(hidden / heads)) * heads}")
    if heads % kv_heads:
        wrong.append(f"heads {heads} is no multiple of kv_heads {kv_heads}")
        legal.append(f"kv_heads={min(divisors(heads), key=lambda n: (abs(n - kv_heads), n))}")
    if wrong:
        raise UserError(" and ".join(wrong), fix=f"write `{','.join(legal)}`", reason="bad_model_shape")


def _given_size(name: str, value: float) -> int:
    """A size that was typed: a whole number, 1 or more; 0 or 1 for a switch. Raises UserError."""
    if name in SWITCHES:
        legal, wanted, example = value in (0, 1), "0 or 1", "1"
    else:
        most = math.inf if name == "params" else MOST_LAYERS if name == "layers" else MOST_OF_ANYTHING
        legal, wanted = value >= 1 and value <= most and value < math.inf and value == int(value), "a whole number"
        wanted += ", 1 or more" if most == math.inf else f" from 1 to {most:,}"
        example = {"layers": "32", "params": "8030000000"}.get(name, "8")
    if not legal:
        raise UserError(
            f"{name} must be {wanted}, it is {value:.15g}",
            fix=f"write for example `{name}={example}`",
            reason="bad_model_shape",
        )
    return int(value)
