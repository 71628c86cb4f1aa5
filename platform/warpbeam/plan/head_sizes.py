"""Sizes that go with the others of a model: the nearest that do, for a config.json and for numbers that were typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from warpbeam.plan.batch import divisors, nearest_multiples

_EXPERTS: Final = "num_local_experts"


def nearest_heads(hidden: int | None, heads: int, kv_heads: int, *, pairs: bool) -> tuple[int | None, int | None]:
    """(a multiple of `heads` near `hidden`, a divisor of `heads` near `kv_heads`), each None where it divides already.

    The two together are accepted: neither depends on the other.

    Args:
        hidden: None where a head's width is given, and need not follow from it.
        pairs: a head's width must be even: rotary embeddings turn its elements in pairs.
    """
    unit = 2 * heads if pairs else heads
    width = None if hidden is None or hidden % unit == 0 else max(1, round(hidden / unit)) * unit
    grouped = None if heads % kv_heads == 0 else min(divisors(heads), key=lambda n: (abs(n - kv_heads), n))
    return width, grouped


def near_sizes(name: str, usual: int, others: Mapping[str, int]) -> Iterator[int]:
    """What may be written for a size that cannot be, the nearest to `usual` first; which of it goes with the others
    is for the caller to try.

    Args:
        name: as in a config.json.
        others: the sizes that are stated, or the family's.
    """
    heads, kv_heads, experts = (others.get(n) for n in ("num_attention_heads", "num_key_value_heads", _EXPERTS))
    more: list[int] = []
    if name == "hidden_size" and heads is not None:
        more += [*nearest_multiples(usual, heads), *nearest_multiples(usual, 2 * heads)]
    elif name == "num_attention_heads":
        more += divisors(others["hidden_size"]) if "hidden_size" in others else []
        more += nearest_multiples(usual, kv_heads) if kv_heads is not None else []
    elif name == "num_key_value_heads" and heads is not None:
        more += divisors(heads)
    elif name == "num_experts_per_tok" and experts is not None:
        more.append(min(usual, experts))
    elif name == _EXPERTS and "num_experts_per_tok" in others:
        more.append(others["num_experts_per_tok"])
    elif name == "num_hidden_layers" and "layer_types" in others:
        more.append(others["layer_types"])
    yield from sorted({usual, *more}, key=lambda size: (abs(size - usual), size))
