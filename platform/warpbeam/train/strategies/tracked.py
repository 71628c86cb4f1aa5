"""State of a user's own loop: `ctx.track` saves and restores it, and leaves the training to the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from warpbeam.errors import UserError
from warpbeam.train.strategies.torch_state import TorchState


class Tracked(TorchState):
    """A module and its optimizer, as the loop made them: plain, DDP, or FSDP2's DTensors."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        bare = module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module
        super().__init__(bare, optimizer, rank, world)
        self.module = module
        own = {id(parameter) for _, parameter in self._parameters()}
        groups = optimizer.param_groups if optimizer is not None else []
        if any(id(parameter) not in own for group in groups for parameter in group["params"]):
            raise UserError(
                "ctx.track: the optimizer updates parameters that are not the model's",
                why="sharding replaces a model's parameters, so an optimizer made before it holds the old ones",
                fix="make the optimizer after fully_shard, from model.parameters()",
                reason="foreign_parameters",
            )


@contextmanager
def no_gradients() -> Iterator[None]:
    """Forward passes that nobody will differentiate."""
    with torch.no_grad():
        yield
