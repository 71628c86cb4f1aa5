"""The process group as the engine sees it: who am I, and the few collectives on host objects and small tensors.

Objects go through gloo even where tensors go through NCCL: they are small, and must not need the accelerator.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=30)


class Ranks:
    """All ranks of this attempt. Works alike in a single process without a group."""

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None
        grouped = dist.is_initialized()
        self.rank = dist.get_rank() if grouped else 0
        self.world_size = dist.get_world_size() if grouped else 1
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if grouped and dist.get_backend() != "gloo":
            self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        if self.world_size == 1:
            return [value]
        everyone: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyone, value, group=self._group)
        return everyone

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value on rank 0, None elsewhere."""
        if self.world_size == 1:
            return [value]
        everyone: list[Any] | None = [None] * self.world_size if self.is_first else None
        dist.gather_object(value, everyone, dst=0, group=self._group)
        return everyone

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value."""
        if self.world_size == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, src=0, group=self._group)
        return holder[0]

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise sum over ranks, in place, where the tensor is."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values


def join(device: torch.device) -> Ranks:
    """Make the process group from the launcher's environment, unless there is one (Ray Train makes it)."""
    if not dist.is_initialized() and "RANK" in os.environ:
        on_gpu = device.type == "cuda"
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT, device_id=device if on_gpu else None)
    return Ranks()


def pick_device() -> torch.device:
    """This rank's accelerator, made current; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
