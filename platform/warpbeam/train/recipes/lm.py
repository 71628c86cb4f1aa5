"""Causal language modelling: `sft` and `pretrain` are one loop, because which tokens carry loss is the data's business.

warpbeam run jobs/sft/job.yaml
torchrun --nproc-per-node 2 -m warpbeam.train jobs/sft/job.yaml
"""

from __future__ import annotations

import torch

from warpbeam.train.context import Context


def train(ctx: Context) -> None:
    """Train the job's model by the plan's strategy."""
    strategy = ctx.shard(ctx.build_model())
    share = torch.zeros((), device=ctx.device)  # of the step's loss: this rank's part of the sum over the global batch
    for batch in ctx.batches():
        with strategy.micro_step(last=batch.last):
            loss = ctx.loss(strategy.module, batch) / batch.global_loss_tokens
            strategy.backward(loss)
        share += loss.detach()
        if batch.last:
            ctx.record.mark("optimizer")
            grad_norm = strategy.step(ctx.lr)
            ctx.step(loss=share, grad_norm=grad_norm)
            share.zero_()
