"""The cache is a sum: the golden case is checked by hand."""

from __future__ import annotations

import pytest

from warpbeam.errors import UserError
from warpbeam.serve.cache_plan import PAGE_TOKENS, bytes_per_token, plan_cache

QWEN_05B = bytes_per_token(layers=24, heads=14, kv_heads=2, head_dim=64, step_tokens=512, bytes_per_value=4)


def test_bytes_of_a_token() -> None:
    assert QWEN_05B == 24_576 + 2_048 + 8 + 7_168, "keys and values, mask column, index, read back"


def test_enough_memory_holds_every_request_at_full_length() -> None:
    plan = plan_cache(bytes_per_token=100, context_tokens=256, batch_requests=8, budget_bytes=2**30)
    assert plan.context_tokens == 256
    assert 256 * 8 < plan.tokens < 256 * 8 * 1.5
    assert plan.bytes == plan.pages * PAGE_TOKENS * 100


def test_a_small_budget_shortens_the_context_and_is_kept() -> None:
    plan = plan_cache(bytes_per_token=QWEN_05B, context_tokens=131_072, batch_requests=32, budget_bytes=2**30)
    assert plan.bytes <= 2**30
    assert 20_000 < plan.context_tokens < 30_000


def test_too_small_a_budget_says_what_to_raise() -> None:
    with pytest.raises(UserError, match="too few to answer") as caught:
        plan_cache(bytes_per_token=QWEN_05B, context_tokens=4096, batch_requests=1, budget_bytes=2**20)
    assert "cache_gib" in caught.value.fix
