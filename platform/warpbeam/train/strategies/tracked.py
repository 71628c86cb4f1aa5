"""State of a user's own loop: `ctx.track` saves and restores it, and leaves the training to the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from warpbeam.train.strategies.torch_state import TorchState


class Tracked(TorchState):
    """A module and its optimizer, as the loop made them: plain, DDP, or FSDP2's DTensors."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        bare = module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module
        super().__init__(bare, optimizer, rank, world)
        self.module = module


@contextmanager
def no_gradients() -> Iterator[None]:
    """Forward passes that nobody will differentiate."""
    with torch.no_grad():
        yield
