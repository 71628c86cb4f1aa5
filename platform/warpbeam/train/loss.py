"""The loss of causal language models: a sum over tokens that carry loss, never a mean of means.

A step's loss is the sum over the whole global batch divided by the number of its loss tokens, so that it does not depend
on how rows are spread over ranks and micro-batches. Logits are made only where a label needs them: the vocabulary
projection is the largest tensor of a step, and in instruction data most positions carry no loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import functional

from warpbeam.errors import UserError

IGNORE = -100


class Batch(Protocol):
    """The tensors of one micro-batch, all [rows, seq_len]."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    segment_ids: torch.Tensor


Hook = Callable[[Any, Any], tuple[torch.Tensor, int | torch.Tensor]]


class CausalLoss:
    """Sum of the token losses of one micro-batch, through a model's forward.

    Args:
        model: the bare model (for its signature).
        hook: the user's `loss(outputs, batch) -> (sum, tokens)`; it gets all logits. None: cross entropy.
    """

    def __init__(self, model: torch.nn.Module, hook: Hook | None = None) -> None:
        parameters = inspect.signature(model.forward).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._hook = hook
        self._slices = hook is None and "logits_to_keep" in parameters
        self._masks = self._slices and _understands_masks()
        self._positions = "position_ids" in parameters or takes_any
        self._cache = {"use_cache": False} if "use_cache" in parameters or takes_any else {}

    def __call__(self, module: torch.nn.Module, batch: Batch, extra: dict[str, Any] | None = None) -> torch.Tensor:
        """Scalar float32 sum. `extra` goes to the model's forward (packed attention needs it)."""
        targets = functional.pad(batch.labels[:, 1:], (0, 1), value=IGNORE)  # position i predicts token i+1
        wanted = targets != IGNORE
        inputs: dict[str, Any] = {"input_ids": batch.input_ids, **self._cache, **(extra or {})}
        if self._positions:
            inputs["position_ids"] = batch.position_ids
        if self._hook is not None:
            return self._by_hook(module(**inputs), batch, wanted)
        if self._masks:
            logits, chosen = module(**inputs, logits_to_keep=wanted).logits, targets[wanted]
        elif self._slices:
            columns = wanted.any(dim=0).nonzero().flatten()
            logits, chosen = module(**inputs, logits_to_keep=columns).logits, targets[:, columns].flatten()
        else:
            logits, chosen = _logits(module(**inputs)), targets.flatten()
        return token_loss_sum(logits.reshape(-1, logits.shape[-1]), chosen)

    def _by_hook(self, outputs: Any, batch: Batch, wanted: torch.Tensor) -> torch.Tensor:
        assert self._hook is not None
        total, tokens = self._hook(outputs, batch)
        expected = int(wanted.sum())
        if int(tokens) != expected:
            raise UserError(
                f"code.loss counted {int(tokens)} loss tokens in a micro-batch whose labels hold {expected}",
                why="the loss is a mean over the loss tokens of the data; another unit would weigh rows wrongly",
                fix="return (sum of the losses where labels != -100 after the shift, their number)",
                reason="loss_hook_count",
            )
        return total.float()


def token_loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy in float32, summed. Zero, with a gradient, when no target carries loss.

    Args:
        logits: [tokens, vocabulary] in any floating type.
        targets: [tokens]; -100 carries no loss.
    """
    if targets.numel() == 0:
        return logits.float().sum()  # empty, but it ties every parameter to the backward that all ranks must run
    return functional.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")


def loss_tokens(labels: torch.Tensor) -> int:
    """How many positions of [rows, seq_len] labels are predicted: the first of a row never is."""
    return int((labels[:, 1:] != IGNORE).sum())


def _logits(outputs: Any) -> torch.Tensor:
    return outputs.logits if hasattr(outputs, "logits") else outputs


def _understands_masks() -> bool:
    """Since transformers 5.2x a boolean [rows, seq_len] `logits_to_keep` picks positions row by row."""
    from transformers import modeling_utils

    return hasattr(modeling_utils, "slice_logits_to_keep")
