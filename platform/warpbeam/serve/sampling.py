"""Choosing each row's next token by that row's own parameters.

transformers' continuous batching samples a whole batch with one generator and one `do_sample`; here every request has
its own temperature, top-p, top-k and seed, greedy ones included. A row's random numbers depend on its seed and on how
many tokens it has drawn, never on the other rows, so a seeded request repeats exactly in any batch.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from warpbeam.serve.engine import GREEDY_BELOW, SamplingParams


@dataclass
class RowSampling:
    """One request's sampling state."""

    temperature: float
    top_p: float
    top_k: int | None
    seed: int
    drawn: int = field(default=0)
    """Random numbers taken so far."""

    @classmethod
    def of(cls, params: SamplingParams) -> RowSampling:
        """A fresh state; without a seed, an unpredictable one."""
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return cls(params.temperature, params.top_p, params.top_k, seed)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    def next_uniform(self) -> float:
        """The next number in [0, 1): 53 bits of a hash of (seed, position)."""
        digest = hashlib.blake2b(struct.pack("<qQ", self.seed, self.drawn), digest_size=8).digest()
        self.drawn += 1
        return float((int.from_bytes(digest, "little") >> 11) * 2.0**-53)


def choose_tokens(logits: torch.Tensor, rows: Sequence[RowSampling], never: torch.Tensor | None) -> torch.Tensor:
    """The next token of each row.

    Args:
        logits: float32 [rows, vocabulary].
        rows: one state per row of `logits`; advanced by one draw where the row is not greedy.
        never: bool [vocabulary], True for ids that must not be chosen (embedding rows without a token), or None.

    Returns:
        int64 [rows].
    """
    if never is not None:
        logits = logits.masked_fill(never, float("-inf"))
    chosen = logits.argmax(dim=-1)
    sampled = [index for index, row in enumerate(rows) if not row.greedy]
    if sampled:
        chosen[sampled] = _sample(logits[sampled], [rows[index] for index in sampled])
    return chosen


def _sample(logits: torch.Tensor, rows: Sequence[RowSampling]) -> torch.Tensor:
    """Temperature, then top-k, then top-p on what is left (the order of `generate`), then one draw a row."""
    device = logits.device
    temperature = torch.tensor([row.temperature for row in rows], dtype=logits.dtype, device=device)
    logits = logits / temperature[:, None]
    if all(row.top_p >= 1 and row.top_k is None for row in rows):
        return _draw(logits.softmax(dim=-1), rows)

    logits, order = logits.sort(dim=-1, descending=True)
    vocabulary = logits.shape[-1]
    top_k = torch.tensor([min(row.top_k or vocabulary, vocabulary) for row in rows], device=device)
    rank = torch.arange(vocabulary, device=device)
    probabilities = logits.masked_fill(rank[None, :] >= top_k[:, None], float("-inf")).softmax(dim=-1)
    top_p = torch.tensor([row.top_p for row in rows], dtype=logits.dtype, device=device)
    # A token stays while those before it do not yet reach top_p: the first always does.
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill((before >= top_p[:, None]) & (rank[None, :] > 0), 0.0)
    return order.gather(-1, _draw(probabilities, rows)[:, None]).squeeze(-1)


def _draw(probabilities: torch.Tensor, rows: Sequence[RowSampling]) -> torch.Tensor:
    """Inverse-CDF draw; `probabilities` [rows, n] need not add up to 1."""
    cumulative = probabilities.double().cumsum(dim=-1)
    uniform = torch.tensor([row.next_uniform() for row in rows], dtype=torch.float64, device=probabilities.device)
    # Strictly below the total, so the index lands on a token of positive probability.
    target = (uniform * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp_(max=probabilities.shape[-1] - 1)
