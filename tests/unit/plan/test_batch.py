"""Batch arithmetic against its definitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warpbeam.plan.batch import accumulation_steps, divisors, largest_micro_batch, legal_world_sizes, nearest_multiples

small = st.integers(1, 300)


@given(small)
def test_divisors(n: int) -> None:
    assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]


@given(small, st.one_of(st.none(), st.integers(1, 8)), small)
def test_legal_world_sizes(batch: int, micro: int | None, limit: int) -> None:
    assert list(legal_world_sizes(batch, micro, limit)) == [
        size for size in range(1, limit + 1) if batch % (size * (micro or 1)) == 0
    ]


@given(small, small)
def test_nearest_multiples(value: int, of: int) -> None:
    found = nearest_multiples(value, of)
    assert all(multiple % of == 0 and multiple > 0 and abs(multiple - value) < of for multiple in found)
    assert found == (value,) if value % of == 0 else len(found) in (1, 2)


@given(small, small, st.integers(1, 8))
def test_accumulation_covers_the_batch_with_less_than_one_micro_step_to_spare(
    batch: int, ranks: int, micro: int
) -> None:
    steps = accumulation_steps(batch, ranks, micro)
    assert steps * ranks * micro >= batch > (steps - 1) * ranks * micro


@given(small, small)
def test_the_micro_batch_divides_exactly_or_pads_least(rows: int, limit: int) -> None:
    exact = largest_micro_batch(rows, limit, may_pad=False)
    assert exact <= limit
    assert rows % exact == 0
    padded = largest_micro_batch(rows, limit, may_pad=True)
    assert exact <= padded <= limit
    steps = -(-rows // padded)
    assert steps == -(-rows // min(limit, rows)), "no more steps than the limit forces"
    assert steps * padded - rows < steps, "and no more padding than those steps need"
