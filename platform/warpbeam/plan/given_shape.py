"""A model's shape from its numbers alone, for models of no family that the planner knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from warpbeam.errors import UserError
from warpbeam.plan.batch import divisors
from warpbeam.plan.config_values import MOST_LAYERS, MOST_OF_ANYTHING, ImpossibleSize
from warpbeam.plan.head_sizes import near_sizes, nearest_heads
from warpbeam.plan.model_shape import INLINE_EXAMPLE, ModelShape, model_shape
from warpbeam.spec_problems import nearest

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
    "window": "tokens that each sees, where all layers have a sliding window (default: all before it)",
    "params": "all parameters, when it is known better than this sum",
}
FAR_OFF: Final = 3.0
"""Times the sum of the sizes from which `params` is a mistyped number: no biases, norms or tables come to that."""
SWITCHES: Final = ("gated", "tied")
USUAL: Final = {  # our word -> what it may be, and what a config.json calls it
    "layers": (32, "num_hidden_layers"),
    "hidden": (4096, "hidden_size"),
    "heads": (32, "num_attention_heads"),
    "ffn": (14_336, "intermediate_size"),
    "vocab": (128_256, "vocab_size"),
    "kv_heads": (8, "num_key_value_heads"),
    "head_dim": (128, "head_dim"),
    "experts": (8, "num_local_experts"),
    "experts_per_token": (2, "num_experts_per_tok"),
    "window": (4096, "sliding_window"),
}


def given_shape(numbers: Mapping[str, float]) -> ModelShape:
    """A shape from its numbers alone (NEEDED and OPTIONAL), counted as a Llama of these sizes: no biases, RMS norms.

    Raises UserError naming what is missing, unknown or impossible.
    """
    unknown = [name for name in numbers if name not in NEEDED and name not in OPTIONAL]
    if lacking := [name for name in NEEDED if name not in numbers]:
        near = {word: nearest(word, lacking) for word in unknown}
        meant = [f"`{name}=` instead of `{word}=`" for word, name in near.items() if name]
        raise UserError(
            f"the shape lacks {', '.join(lacking)}",
            why="; ".join(f"{name}: {NEEDED[name]}" for name in lacking),
            fix="write " + (" and ".join(meant) if meant else f"for example `{INLINE_EXAMPLE}`"),
            reason="bad_model_shape",
        )
    if unknown:
        known = ", ".join([*NEEDED, *OPTIONAL])
        raise UserError(f"a shape has no {', '.join(unknown)}", fix=f"it has {known}", reason="bad_model_shape")
    try:
        return _of_sizes({name: _given_size(name, value) for name, value in numbers.items()})
    except ImpossibleSize as error:
        refused = error
    refused.fix = f"write for example `{refused.name}={_offer(refused.name, numbers)}`"
    raise refused


def _offer(name: str, numbers: Mapping[str, float]) -> int:
    """What is accepted in the place of a size that cannot be, if it goes with the others."""
    rest = {word: value for word, value in numbers.items() if word != name}
    if name in SWITCHES:
        return 1
    if name == "params":
        shape = _accepted(rest)
        return shape.parameters if shape is not None else 8_030_000_000
    usual, key = USUAL[name]
    if math.isfinite(numbers[name]) and 1 <= numbers[name] <= MOST_LAYERS:  # 4.5 layers
        usual = round(numbers[name])
    others = {USUAL[word][1]: int(value) for word, value in rest.items() if word in USUAL and math.isfinite(value)}
    others = {word: value for word, value in others.items() if 1 <= value <= MOST_OF_ANYTHING}
    others = {"num_local_experts": 1} | others
    scales = sorted((2.0**n for n in range(-12, 9)), key=lambda scale: abs(math.log(scale)))  # where `params` is stated
    sizes = [n for scale in scales for n in near_sizes(key, max(1, round(usual * scale)), others)]
    unsized = {word: value for word, value in rest.items() if word != "params"}
    tried = (size for given in (rest, unsized) for size in sizes if _accepted({**given, name: size}) is not None)
    return next(tried, usual)


def _accepted(numbers: Mapping[str, float]) -> ModelShape | None:
    try:
        return _of_sizes({name: _given_size(name, value) for name, value in numbers.items()})
    except UserError:
        return None


def _of_sizes(sizes: Mapping[str, int]) -> ModelShape:
    experts, used = sizes.get("experts", 1), sizes.get("experts_per_token", 1)
    if used > experts:
        raise UserError(
            f"experts_per_token is {used}, there {'is 1 expert' if experts == 1 else f'are {experts} experts'}",
            fix=f"write `experts_per_token={experts}` or less",
            reason="bad_model_shape",
        )
    _check_heads(sizes)
    counted = _counted(sizes)
    if "params" in sizes:
        counted = _scaled(counted, sizes["params"])
    window = sizes.get("window")
    return replace(counted, family="given", window=window, windowed_layers=counted.layers if window else 0)


def _counted(sizes: Mapping[str, int]) -> ModelShape:
    """Of the sizes alone; with two matrices in the MLP, one less than a Llama has."""
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
    if sizes.get("gated", 1):
        return counted
    plain = counted.hidden_size * counted.intermediate_size
    return replace(
        counted,
        gated=False,
        parameters=counted.parameters - counted.layers * counted.experts * plain,
        active_parameters=counted.active_parameters - counted.layers * counted.experts_per_token * plain,
        layer_parameters=counted.layer_parameters - counted.experts * plain,
    )


def _scaled(counted: ModelShape, params: int) -> ModelShape:
    """With all parameters as they were stated. Raises UserError where the sizes cannot come to that."""
    scale = params / counted.parameters
    if not 1 / FAR_OFF <= scale <= FAR_OFF:
        raise UserError(
            f"params is {params:.15g}, and the sizes come to {counted.parameters}",
            why=f"more than {FAR_OFF:g} times off, one of the numbers is mistyped",
            fix=f"leave params out, or write `params={counted.parameters}`",
            reason="bad_model_shape",
        )
    names = ("active_parameters", "layer_parameters")
    return replace(counted, parameters=params, **{name: round(getattr(counted, name) * scale) for name in names})


def _check_heads(sizes: Mapping[str, int]) -> None:
    """Width and heads that do not divide, together: what is offered must not be refused in its turn."""
    heads, hidden = sizes["heads"], sizes["hidden"]
    kv_heads = sizes.get("kv_heads", heads)
    width, grouped = nearest_heads(None if "head_dim" in sizes else hidden, heads, kv_heads, pairs=True)
    wrong, legal = [], []
    if width is not None:
        wrong.append(
            f"hidden {hidden} is no multiple of {f'heads {heads}' if hidden % heads else f'twice heads {heads}'}"
        )
        legal.append(f"hidden={width}")
    if grouped is not None:
        wrong.append(f"heads {heads} is no multiple of kv_heads {kv_heads}")
        legal.append(f"kv_heads={grouped}")
    if wrong:
        other = _other_heads(heads, hidden, sizes.get("kv_heads", 1)) if width is not None else None
        fix = f"write `{','.join(legal)}`" + (f", or `heads={other}`" if other else "")
        raise UserError(" and ".join(wrong), fix=fix, reason="bad_model_shape")


def _other_heads(heads: int, hidden: int, unit: int) -> int | None:
    """The number of heads next to a mistyped one that goes with the width, in multiples of `unit`."""
    legal = [count for count in divisors(hidden // 2) if count % unit == 0] if hidden % 2 == 0 else []
    return min(legal, key=lambda count: (abs(count - heads), count), default=None)


def _given_size(name: str, value: float) -> int:
    """A size that was typed: a whole number, 1 or more; 0 or 1 for a switch. Raises UserError."""
    if name in SWITCHES:
        legal, wanted = value in (0, 1), "0 or 1"
    else:
        most = math.inf if name == "params" else MOST_LAYERS if name == "layers" else MOST_OF_ANYTHING
        legal, wanted = value >= 1 and value <= most and value < math.inf and value == int(value), "a whole number"
        wanted += ", 1 or more" if most == math.inf else f" from 1 to {most:,}"
    if not legal:
        error = ImpossibleSize(f"{name} must be {wanted}, it is {value:.15g}", reason="bad_model_shape")
        error.name = name
        raise error
    return int(value)
