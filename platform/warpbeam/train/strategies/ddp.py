"""Every rank holds the whole model: torch's DDP, or the bare module on one rank.

Parameters stay float32 and bf16 runs by autocast, so masters, gradient accumulation and reduction are float32 without a
second copy. Needs nothing but torch, and runs where DeepSpeed is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist

from warpbeam.checkpoint.pieces import Piece
from warpbeam.train.optimizer import parameter_groups, set_lr, torch_adamw
from warpbeam.train.strategies.base import AdamW, PieceData, Read
from warpbeam.train.strategies.torch_state import TorchState


class DataParallel:
    """Data parallel training with replicated state; saving is shared out over the ranks."""

    name = "ddp"

    def __init__(
        self, module: torch.nn.Module, optimizer: AdamW, *, clip: float | None, precision: str = "fp32"
    ) -> None:
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.grad_scale = float(world)  # DDP averages over ranks
        self._clip = clip
        self._bf16 = precision == "bf16"
        if self._bf16 and hasattr(module, "get_input_embeddings"):
            # Else the residual stream would be float32, as the embedding's weights are: twice the memory and traffic.
            module.get_input_embeddings().register_forward_hook(lambda _, __, output: output.bfloat16())  # type: ignore[operator]
        self._device = next(module.parameters()).device
        self._ddp = _wrap(module, self._device) if world > 1 else None
        self.module: torch.nn.Module = self._ddp or module
        self._trainable = [p for p in module.parameters() if p.requires_grad]
        self._optimizer = torch_adamw(parameter_groups(module, optimizer.weight_decay), optimizer)
        self._state = TorchState(module, self._optimizer, rank, world)
        self._state.create()

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        with self._ddp.no_sync() if self._ddp is not None and not last else nullcontext(), self._precision():
            yield

    def backward(self, loss: torch.Tensor) -> None:
        (loss * self.grad_scale).backward()  # type: ignore[no-untyped-call]

    @contextmanager
    def forward_only(self) -> Iterator[None]:
        with torch.no_grad(), self._precision():
            yield

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def step(self, lr: float) -> float:
        norm = torch.nn.utils.get_total_norm([p.grad for p in self._trainable if p.grad is not None])
        if self._clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self._trainable, self._clip, norm)
        set_lr(self._optimizer, lr)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def pieces(self) -> Iterator[PieceData]:
        return self._state.pieces()

    def alone(self) -> Iterator[PieceData] | None:
        return self._state.alone()

    @property
    def updates(self) -> int:
        return self._state.updates

    def optimizer_steps(self) -> dict[str, int]:
        return self._state.optimizer_steps()

    def wanted(self, *, optimizer: bool) -> Iterator[Piece]:
        return self._state.wanted(optimizer=optimizer)

    def restore(self, read: Read, steps: Mapping[str, int] | None) -> None:
        self._state.restore(read, steps)


def _wrap(module: torch.nn.Module, device: torch.device) -> torch.nn.parallel.DistributedDataParallel:
    return torch.nn.parallel.DistributedDataParallel(
        module, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True
    )
