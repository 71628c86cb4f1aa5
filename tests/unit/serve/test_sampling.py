"""Every row by its own parameters, as `generate` would, and repeatable."""

from __future__ import annotations

import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from warpbeam.serve.engine import SamplingParams
from warpbeam.serve.sampling import RowSampling, choose_tokens


def row(temperature: float = 1.0, top_p: float = 1.0, top_k: int | None = None, seed: int = 0) -> RowSampling:
    return RowSampling(temperature, top_p, top_k, seed)


def draws(logits: torch.Tensor, count: int, **params: object) -> torch.Tensor:
    state = row(**params)  # type: ignore[arg-type]
    return torch.stack([choose_tokens(logits[None], [state], None)[0] for _ in range(count)])


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(50, generator=torch.Generator().manual_seed(3)) * 2


def test_greedy_rows_and_sampled_rows_share_a_batch(logits: torch.Tensor) -> None:
    batch = logits.repeat(3, 1)
    chosen = choose_tokens(batch, [row(0.0), row(seed=5), row(top_k=1)], None)
    assert chosen[0] == chosen[2] == logits.argmax()
    assert chosen[1] == choose_tokens(logits[None], [row(seed=5)], None)[0]


def test_a_seed_repeats_in_any_company(logits: torch.Tensor) -> None:
    alone = draws(logits, 20, seed=11, top_p=0.9)
    state = row(seed=11, top_p=0.9)
    others = [row(seed=1), row(1.9, seed=2)]
    together = [choose_tokens(logits.repeat(3, 1), [others[0], state, others[1]], None)[1] for _ in range(20)]
    assert torch.equal(alone, torch.stack(together))
    assert len(set(alone.tolist())) > 1


def test_without_a_seed_two_requests_differ(logits: torch.Tensor) -> None:
    params = SamplingParams(max_tokens=1)
    assert RowSampling.of(params).seed != RowSampling.of(params).seed


@pytest.mark.parametrize("top_k", [1, 3, 50, 10_000])
def test_top_k_keeps_what_generate_keeps(logits: torch.Tensor, top_k: int) -> None:
    kept = torch.isfinite(TopKLogitsWarper(top_k)(None, logits[None]))[0]
    assert set(draws(logits, 400, top_k=top_k).tolist()) <= set(torch.nonzero(kept).flatten().tolist())


@pytest.mark.parametrize("top_p", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_top_p_keeps_what_generate_keeps(logits: torch.Tensor, top_p: float) -> None:
    kept = torch.isfinite(TopPLogitsWarper(top_p)(None, logits[None]))[0]
    seen = set(draws(logits, 800, top_p=top_p).tolist())
    assert seen <= set(torch.nonzero(kept).flatten().tolist())
    if top_p <= 0.5:
        assert len(seen) == int(kept.sum())


def test_frequencies_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    counts = torch.bincount(draws(probabilities.log(), 4000), minlength=4) / 4000
    assert torch.allclose(counts, probabilities, atol=0.03)
    sharper = torch.bincount(draws(probabilities.log(), 4000, temperature=0.5), minlength=4) / 4000
    assert torch.allclose(sharper, probabilities**2 / (probabilities**2).sum(), atol=0.03)


def test_padding_rows_of_the_embedding_are_never_chosen() -> None:
    logits = torch.zeros(2, 8)
    logits[:, 5:] = 50.0
    never = torch.arange(8) >= 5
    states = [row(0.0), row(2.0)]
    for _ in range(50):
        assert bool((choose_tokens(logits, states, never) < 5).all())


def test_a_tiny_temperature_is_greedy(logits: torch.Tensor) -> None:
    assert set(draws(logits, 20, temperature=1e-40).tolist()) == {int(logits.argmax())}
