"""Width and heads that must divide: the nearest sizes that do, for a config.json and for numbers that were typed."""

from __future__ import annotations

from warpbeam.plan.batch import divisors


def nearest_heads(hidden: int | None, heads: int, kv_heads: int) -> tuple[int | None, int | None]:
    """(a multiple of `heads` near `hidden`, a divisor of `heads` near `kv_heads`), each None where it divides already.

    The two together are accepted: neither depends on the other.

    Args:
        hidden: None where a head's width is given, and need not follow from it.
    """
    width = None if hidden is None or hidden % heads == 0 else max(1, round(hidden / heads)) * heads
    grouped = None if heads % kv_heads == 0 else min(divisors(heads), key=lambda n: (abs(n - kv_heads), n))
    return width, grouped
