"""Batch arithmetic: how the rows of one optimizer step are shared among ranks and micro-batches.

The job fixes `global_batch`; `world_size x micro_batch x accumulation` must make exactly that many rows, except at an
elastic size, where the last micro-batches are padded with rows of zero weight.
"""

from __future__ import annotations

from typing import Final

# Tokens in one micro-batch beyond which a rank gains nothing more: its matrices are large enough.
ENOUGH_TOKENS: Final = {"cpu": 4096, "gpu": 65_536}


def divisors(n: int) -> list[int]:
    """All divisors of `n`, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def legal_world_sizes(global_batch: int, micro_batch: int | None, limit: int) -> tuple[int, ...]:
    """The numbers of ranks up to `limit` that share `global_batch` without padding, ascending."""
    return tuple(
        size for size in divisors(global_batch) if size <= limit and global_batch % (size * (micro_batch or 1)) == 0
    )


def nearest_multiples(value: int, of: int) -> tuple[int, ...]:
    """The multiples of `of` around `value`, ascending; `value` itself if it is one."""
    below, above = value // of * of, -(-value // of) * of
    return tuple(sorted({multiple for multiple in (below, above) if multiple > 0}))


def accumulation_steps(global_batch: int, world_size: int, micro_batch: int) -> int:
    """Micro-batches a rank computes for one optimizer step; rounded up (the rest is padding)."""
    return -(-global_batch // (world_size * micro_batch))


def largest_micro_batch(rows_per_rank: int, limit: int, *, may_pad: bool) -> int:
    """The largest micro-batch up to `limit` for `rows_per_rank` rows; where padding is allowed, as little of it as
    the fewest micro-batches need."""
    limit = max(1, min(limit, rows_per_rank))
    if may_pad:
        fewest = -(-rows_per_rank // limit)
        return -(-rows_per_rank // fewest)
    return max(size for size in divisors(rows_per_rank) if size <= limit)


def enough_rows(seq_len: int, *, on_cpu: bool) -> int:
    """Rows of a micro-batch beyond which this version does not go by itself."""
    return max(1, ENOUGH_TOKENS["cpu" if on_cpu else "gpu"] // seq_len)
