"""Torch's AdamW with the usual two groups: matrices are decayed, norms and biases are not.

One implementation for every strategy, because a run may change its strategy at resume and the groups must be the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from warpbeam.train.strategies.base import AdamW


def parameter_groups(module: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters, tied ones once, in the order of the model; empty groups are left out."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    # A ZeRO-3 parameter is empty until it is gathered; `ds_shape` is its real shape.
    decayed = [p for p in trainable if len(_shape(p)) >= 2]
    plain = [p for p in trainable if len(_shape(p)) < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _shape(parameter: torch.nn.Parameter) -> torch.Size:
    return getattr(parameter, "ds_shape", parameter.shape)


def torch_adamw(groups: Iterable[dict[str, Any]], config: AdamW) -> torch.optim.AdamW:
    """Fused on CPU and GPU: one pass over each tensor."""
    return torch.optim.AdamW(groups, lr=0.0, betas=config.betas, eps=config.eps, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The schedule is a pure function of the step, so the rate is set, never advanced."""
    for group in optimizer.param_groups:
        group["lr"] = lr
