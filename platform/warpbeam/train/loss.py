"""The loss of causal language models: a sum over tokens that carry loss, never a mean of means.

A step's loss is the sum over the whole global batch divided by the number of its loss tokens, so it does not depend on
how rows are spread over ranks and micro-batches. Logits are made only where a label needs them: the projection to the
vocabulary is the largest tensor of a step, and in instruction data most positions carry no loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import functional

from warpbeam.errors import UserError
from warpbeam.train.forward import Forward, logits_of

IGNORE = -100


class Rows(Protocol):
    """What the loss needs of a micro-batch; tensors are [rows, seq_len]."""

    @property
    def labels(self) -> torch.Tensor: ...
    @property
    def inputs(self) -> dict[str, Any]: ...


Hook = Callable[[Any, Any], tuple[torch.Tensor, "int | torch.Tensor"]]


class CausalLoss:
    """Sum of the token losses of one micro-batch, through a model's forward.

    Args:
        model: the bare model; its signature says what it takes.
        hook: the user's `loss(outputs, batch) -> (sum, tokens)`, which gets all logits. None: cross entropy.
    """

    def __init__(self, model: torch.nn.Module, hook: Hook | None = None) -> None:
        self._forward = Forward(model)
        self._hook = hook
        self._slices = hook is None and self._forward.slices_logits
        self._masks = self._slices and _understands_masks()

    def __call__(self, module: torch.nn.Module, batch: Rows) -> torch.Tensor:
        """Scalar float32 sum over this micro-batch; `module` is what the strategy calls for a forward."""
        targets = functional.pad(batch.labels[:, 1:], (0, 1), value=IGNORE)  # position i predicts token i + 1
        wanted = targets != IGNORE
        if self._hook is not None:
            return self._by_hook(self._forward(module, batch.inputs), batch, wanted)
        if self._masks:
            logits = self._forward(module, batch.inputs, logits_to_keep=wanted).logits
            chosen = targets[wanted]
        elif self._slices:
            columns = wanted.any(dim=0).nonzero().flatten()
            logits = self._forward(module, batch.inputs, logits_to_keep=columns).logits
            chosen = targets[:, columns].flatten()
        else:
            logits, chosen = logits_of(self._forward(module, batch.inputs)), targets.flatten()
        return token_loss_sum(logits.reshape(-1, logits.shape[-1]), chosen)

    def _by_hook(self, outputs: Any, batch: Rows, wanted: torch.Tensor) -> torch.Tensor:
        assert self._hook is not None
        total, tokens = _pair(self._hook(outputs, batch))
        expected = int(wanted.sum())
        if int(tokens) != expected:
            raise UserError(
                f"code.loss counted {int(tokens)} loss tokens in a micro-batch whose labels hold {expected}",
                why="the loss is a mean over the loss tokens of the data; another unit would weigh rows wrongly",
                fix="return (sum of the losses where the shifted labels are not -100, how many those are)",
                reason="loss_hook_count",
            )
        return total.float()


def _pair(answer: Any) -> tuple[torch.Tensor, int | torch.Tensor]:
    """What a loss hook returned, if it is what a loss hook returns."""
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], torch.Tensor):
        return answer
    got = f"a tuple of {', '.join(type(item).__name__ for item in answer)}" if isinstance(answer, tuple) else ""
    raise UserError(
        f"code.loss returned {got or f'one {type(answer).__name__}'}, not (sum, number of loss tokens)",
        why="the loss is a mean over the loss tokens of all ranks and micro-batches, which needs both",
        fix="return (sum of the losses where the shifted labels are not -100, how many those are)",
        reason="loss_hook_result",
    )


def token_loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy in float32, summed. Zero, with a gradient, when no target carries loss.

    Args:
        logits: [tokens, vocabulary] in any floating type.
        targets: [tokens]; -100 carries no loss.
    """
    if targets.numel() == 0:
        return logits.float().sum()  # of nothing, but it ties the parameters to the backward that every rank must run
    return functional.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")


def _understands_masks() -> bool:
    """Newer transformers take a boolean [rows, seq_len] `logits_to_keep`; older ones only columns for all rows."""
    from transformers import modeling_utils

    return hasattr(modeling_utils, "slice_logits_to_keep")
