"""State of plain torch modules and optimizers as pieces: whole tensors (DDP, one process) and DTensors (FSDP2, TP).

A DTensor's local shard is an index box of the global tensor. Of what several ranks hold alike, each writes a part, so that
every element is saved once and no rank saves everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from warpbeam.checkpoint.pieces import Box, Piece, Range, split_range
from warpbeam.errors import UserError
from warpbeam.train.strategies.base import MOMENTS, PieceData, Read, canonical, persistent_buffers


class TorchState:
    """Reads and writes the state of one module and its optimizer."""

    def __init__(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, rank: int, world_size: int
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._rank, self._world = rank, world_size

    def create(self) -> None:
        """Give the optimizer its state before the first step, as that step would: with gradients and a rate of zero."""
        optimizer = self._optimizer
        if optimizer is None or any(
            optimizer.state.get(p) for group in optimizer.param_groups for p in group["params"]
        ):
            return
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for state in optimizer.state.values():
            for key, value in state.items():
                state[key] = value.zero_() if isinstance(value, torch.Tensor) else 0

    def pieces(self) -> Iterator[PieceData]:
        for name, parameter in self._parameters():
            for kind, tensor in [("weight", parameter.data), *self._moments(name, parameter)]:
                yield from self._shard(name, kind, tensor, parameter.shape)
        for name, buffer in persistent_buffers(self._module).items():
            if self._rank == 0:
                index = Range(0, buffer.numel())
                yield Piece(name, "buffer", tuple(buffer.shape), index), buffer.detach().cpu().flatten()

    def optimizer_steps(self) -> dict[str, int]:
        steps = {}
        for name, parameter in self._parameters():
            state = self._optimizer.state.get(parameter, {}) if self._optimizer else {}
            if "step" in state:
                steps[name] = int(state["step"])
        return steps

    @torch.no_grad()
    def restore(self, read: Read, steps: Mapping[str, int] | None) -> None:
        if steps is not None:
            self.create()
        for name, parameter in self._parameters():
            moments = self._moments(name, parameter) if steps is not None else []
            for kind, tensor in [("weight", parameter.data), *moments]:
                self._fill(name, kind, tensor, read)
            if steps is not None and name in steps:
                self._set_step(parameter, steps[name])
        for name, buffer in persistent_buffers(self._module).items():
            index = Range(0, buffer.numel())
            buffer.copy_(read(Piece(name, "buffer", tuple(buffer.shape), index)).view(buffer.shape))

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, parameter in self._module.named_parameters():
            yield canonical(name), parameter

    def _moments(self, name: str, parameter: torch.nn.Parameter) -> list[tuple[str, torch.Tensor]]:
        state = self._optimizer.state.get(parameter, {}) if self._optimizer else {}
        unknown = sorted(set(state) - {"step", *MOMENTS})
        if unknown:
            raise UserError(
                f"the optimizer keeps {', '.join(unknown)} for {name}, which checkpoints do not know",
                why="checkpoints store the states of Adam's family (exp_avg, exp_avg_sq, step) under canonical names",
                fix="use Adam, AdamW or an optimizer without state (plain SGD) with ctx.track",
                reason="optimizer_state_unknown",
            )
        return [(kind, state[kind]) for kind in MOMENTS if kind in state]

    def _shard(self, name: str, kind: str, tensor: torch.Tensor, shape: torch.Size) -> Iterator[PieceData]:
        """The part of a tensor that this rank writes."""
        whole = tuple(shape)
        if isinstance(tensor, DTensor):
            box = _local_box(tensor)
            if _writes(tensor) and all(box.sizes):
                yield Piece(name, kind, whole, box), tensor.to_local().detach().float().cpu()  # type: ignore[arg-type]
            return
        part = split_range(tensor.numel(), self._world)[self._rank]
        if part.a < part.b:
            local = tensor.detach().reshape(-1)[part.a : part.b]
            yield Piece(name, kind, whole, part), local.float().cpu()  # type: ignore[arg-type]

    def _fill(self, name: str, kind: str, tensor: torch.Tensor, read: Read) -> None:
        """Every element that this rank holds, also those that another one wrote."""
        if isinstance(tensor, DTensor):
            box = _local_box(tensor)
            if all(box.sizes):
                tensor.to_local().copy_(read(Piece(name, kind, tuple(tensor.shape), box)))  # type: ignore[arg-type]
            return
        value = read(Piece(name, kind, tuple(tensor.shape), Range(0, tensor.numel())))  # type: ignore[arg-type]
        tensor.copy_(value.view(tensor.shape))

    def _set_step(self, parameter: torch.nn.Parameter, step: int) -> None:
        state = self._optimizer.state.get(parameter, {}) if self._optimizer else {}
        if isinstance(state.get("step"), torch.Tensor):
            state["step"].fill_(step)
        elif "step" in state:
            state["step"] = step


def _local_box(tensor: DTensor) -> Box:
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Box(tuple(offsets), tuple(sizes))


def _writes(tensor: DTensor) -> bool:
    """Of ranks that replicate a shard along a mesh dimension, the first one writes it."""
    coordinate = tensor.device_mesh.get_coordinate()
    return coordinate is not None and all(
        position == 0
        for position, placement in zip(coordinate, tensor.placements, strict=True)
        if placement.is_replicate()
    )
