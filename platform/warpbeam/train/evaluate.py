"""The held-out loss: one number, whatever the layout.

The mean over the loss tokens of all evaluation rows. Every rank runs as many micro-batches (the last ones may be
padding that weighs nothing), so sharded models stay in step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from warpbeam.train.batch import Batch
from warpbeam.train.ranks import Ranks

LossSum = Callable[[torch.nn.Module, Batch], torch.Tensor]


@dataclass(frozen=True)
class EvalResult:
    """Loss over `tokens` loss tokens; the number is the data's, not the layout's."""

    loss: float
    tokens: int


def evaluate(
    module: torch.nn.Module,
    loss_sum: LossSum,
    batches: Iterable[Batch],
    ranks: Ranks,
    device: torch.device,
    forward_only: Callable[[], AbstractContextManager[None]],
) -> EvalResult:
    """Run all evaluation rows through the model, without gradients and dropout. Collective."""
    total, tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    was_training = module.training
    module.eval()
    try:
        with forward_only():
            for batch in batches:
                total += loss_sum(module, batch).double()
                tokens = batch.global_loss_tokens
    finally:
        module.train(was_training)
    return EvalResult(float(ranks.sum(total)) / max(1, tokens), tokens)
