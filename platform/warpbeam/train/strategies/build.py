"""The strategy that a plan names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpbeam.train.strategies.base import AdamW, Strategy

if TYPE_CHECKING:
    import torch

    from warpbeam.job import Train
    from warpbeam.plan.plan import Plan


def make_strategy(module: torch.nn.Module, plan: Plan, train: Train) -> Strategy:
    """Spread `module` as the plan says. Collective."""
    optimizer = AdamW(betas=train.betas, eps=train.eps, weight_decay=train.weight_decay)
    if plan.strategy == "ddp":
        from warpbeam.train.strategies.ddp import DataParallel

        return DataParallel(module, optimizer, clip=train.clip, precision=plan.precision)
    from warpbeam.train.strategies.deepspeed import DeepSpeedStrategy

    assert plan.deepspeed is not None
    return DeepSpeedStrategy(module, plan.deepspeed, optimizer, name=plan.strategy)
