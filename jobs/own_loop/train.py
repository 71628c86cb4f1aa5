"""A training loop of your own, in plain torch (FSDP2), that keeps everything: data, checkpoints, resume, stop, metrics.

    warpbeam run jobs/own_loop/job.yaml                                     # this machine
    warpbeam submit jobs/own_loop/job.yaml --address http://HOST:8265       # a Ray cluster
    torchrun --nproc-per-node 2 -m warpbeam.train jobs/own_loop/job.yaml    # no Ray, on prepared data

Copy this folder and change what you like: the model, the loss, the optimizer, the order of things. What the loop must
do: `ctx.track` what is to be saved, take its batches from `ctx.batches()`, and end each step with `ctx.step`.
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from warpbeam.train.batch import Batch
from warpbeam.train.context import Context


def train(ctx: Context) -> None:
    """What the job file names as its recipe; every rank runs it."""
    # The job's model, the same on every rank. Any other torch.nn.Module would do as well.
    model = ctx.build_model()

    # FSDP2: each decoder layer is gathered when it is needed, and its gradients are reduced when it is done.
    mesh = init_device_mesh(ctx.device.type, (ctx.world_size,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=ctx.job.train.lr, weight_decay=ctx.job.train.weight_decay)

    # From here on the model and its optimizer are saved, and restored if this run has a checkpoint.
    ctx.track(model=model, optimizer=optimizer, loss=token_loss)

    share = torch.zeros((), device=ctx.device)  # this rank's part of the step's loss
    for batch in ctx.batches():  # begins at the first step that is not done
        # Over all ranks and micro-batches, the step's loss is (sum of losses) / (number of loss tokens).
        loss = token_loss(model, batch) / batch.global_loss_tokens
        # FSDP2 averages gradients over ranks; grad_scale makes them sums, so that the line above stays true.
        model.set_requires_gradient_sync(batch.last)
        (loss * ctx.grad_scale).backward()
        share += loss.detach()

        if batch.last:  # the last micro-batch of an optimizer step
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), ctx.job.train.clip or float("inf"))
            for group in optimizer.param_groups:
                group["lr"] = ctx.lr  # the plan's schedule; a pure function of the step
            optimizer.step()
            optimizer.zero_grad()
            # Metrics, heartbeat, evaluation and checkpoint when they are due, stop when asked.
            ctx.step(loss=share, grad_norm=norm)
            share.zero_()


def token_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Sum of the losses of the tokens that carry loss; also what evaluation uses."""
    logits = model(**batch.inputs).logits  # batch.inputs: ids, positions, and what keeps packed examples apart
    logits, targets = logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten()  # position i predicts token i + 1
    return functional.cross_entropy(logits.float(), targets, ignore_index=-100, reduction="sum")
