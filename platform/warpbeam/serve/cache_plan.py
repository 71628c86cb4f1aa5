"""How many tokens of key/value cache an engine reserves: a sum, made before anything is allocated.

transformers sizes its cache from the machine's free memory, on CPUs too (13.6 GB for a 3.5M model, then the kernel's
out-of-memory killer), so the size is always computed here and given explicitly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from warpbeam.errors import UserError

PAGE_TOKENS = 32
"""Tokens in a cache page. Requests waste half a page each on average; shared prefixes are found page by page."""

SPARE = 1.2
"""The scheduler admits no second prompt while less than 15% of the cache is free."""

MIN_CONTEXT_TOKENS = 64


@dataclass(frozen=True)
class CachePlan:
    """What to reserve."""

    pages: int
    context_tokens: int
    """May be less than the model's own where memory allows no more."""
    bytes: int

    @property
    def tokens(self) -> int:
        return self.pages * PAGE_TOKENS


def plan_cache(*, bytes_per_token: int, context_tokens: int, batch_requests: int, budget_bytes: int) -> CachePlan:
    """The smallest cache that never makes requests wait for memory, or what the budget allows.

    Args:
        bytes_per_token: of the function of that name.
        context_tokens: longest request wanted.
        batch_requests: requests computed at once.
        budget_bytes: at most this much.

    Raises:
        UserError: the budget does not hold one short request.
    """
    page_bytes = bytes_per_token * PAGE_TOKENS
    wanted = ceil(context_tokens * batch_requests * SPARE / PAGE_TOKENS) + batch_requests
    pages = min(wanted, budget_bytes // page_bytes)
    context = min(context_tokens, int(pages * PAGE_TOKENS / SPARE))
    if context < min(MIN_CONTEXT_TOKENS, context_tokens):
        raise UserError(
            f"a cache of {budget_bytes / 2**30:.2f} GiB holds {pages * PAGE_TOKENS} tokens: too few to answer",
            why=f"this model needs {bytes_per_token / 2**10:.1f} KiB a token, work space included",
            fix="give the engine more with cache_gib, or serve a smaller model",
            reason="cache_too_small",
        )
    return CachePlan(pages=pages, context_tokens=context, bytes=pages * page_bytes)


def bytes_per_token(
    *, layers: int, heads: int, kv_heads: int, head_dim: int, step_tokens: int, bytes_per_value: int
) -> int:
    """Memory that one token of the cache costs.

    Its keys and values in every layer; and the work space that grows with the cache: a column of the attention mask
    (one row a token of a step), its place in the index (8 bytes), and its keys and values read back in one layer,
    repeated for every query head.
    """
    stored = 2 * layers * kv_heads * head_dim * bytes_per_value
    mask = step_tokens * bytes_per_value
    read_back = 2 * heads * head_dim * bytes_per_value
    return stored + mask + 8 + read_back
