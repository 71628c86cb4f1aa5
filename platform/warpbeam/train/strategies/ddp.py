"""Every rank holds the whole model: torch's DDP, or the bare module on one rank.

Parameters stay float32 and bf16 runs by autocast, so that masters, gradient accumulation and reduction are float32 without
a second copy. Needs nothing but torch, and runs where DeepSpeed is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist

from warpbeam.checkpoint.pieces import Piece, Range, split_range
from warpbeam.train.optimizer import parameter_groups, set_lr, torch_adamw
from warpbeam.train.strategies.base import AdamW, PieceData, Read
from warpbeam.train.strategies.torch_state import TorchState


class DataParallel:
    """Data parallel training with replicated state; saving is shared out over the ranks."""

    def __init__(
        self, module: torch.nn.Module, optimizer: AdamW, *, clip: float | None, precision: str = "fp32"
    ) -> None:
        self.name = "ddp"
        distributed = dist.is_initialized() and dist.get_world_size() > 1
        self._rank, self._world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        self.grad_scale = float(self._world)  # DDP averages over ranks
        self._clip = clip
        self._autocast = torch.bfloat16 if precision == "bf16" else None
        self._bare = module
        self._device = next(module.parameters()).device
        self._ddp = _wrap(module) if distributed else None
        self.module = self._ddp or module
        self._optimizer = torch_adamw(parameter_groups(module, optimizer.weight_decay), optimizer)
        self._state = TorchState(module, self._optimizer, self._rank, self._world)
        self._state.create()
        self._trainable = [p for p in module.parameters() if p.requires_grad]

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        quiet = self._ddp.no_sync() if self._ddp is not None and not last else nullcontext()
        cast = torch.autocast(self._device.type, self._autocast) if self._autocast else nullcontext()
        with quiet, cast:
            yield

    def backward(self, loss: torch.Tensor) -> None:
        (loss * self.grad_scale).backward()  # type: ignore[no-untyped-call]

    def step(self, lr: float) -> float:
        norm = torch.nn.utils.get_total_norm([p.grad for p in self._trainable if p.grad is not None], foreach=True)
        if self._clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self._trainable, self._clip, norm, foreach=True)
        set_lr(self._optimizer, lr)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def pieces(self) -> Iterator[PieceData]:
        return self._state.pieces()

    def optimizer_steps(self) -> dict[str, int]:
        return self._state.optimizer_steps()

    def restore(self, read: Read, steps: Mapping[str, int] | None) -> None:
        self._state.restore(read, steps)


def _wrap(module: torch.nn.Module) -> torch.nn.parallel.DistributedDataParallel:
    device = next(module.parameters()).device
    return torch.nn.parallel.DistributedDataParallel(
        module, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True
    )


__all__ = ["DataParallel", "Piece", "Range", "split_range"]
