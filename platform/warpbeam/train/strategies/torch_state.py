"""State of plain torch modules and optimizers as pieces: whole tensors (DDP, one process) and DTensors (FSDP2, TP).

A DTensor's local shard is an index box of the global tensor. Of what several ranks hold alike, each writes a part, so
every element is saved once and no rank saves everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from warpbeam.checkpoint.pieces import Box, Kind, Piece, Range, split_range, whole
from warpbeam.errors import UserError
from warpbeam.train.strategies.base import (
    MOMENTS,
    PieceData,
    Read,
    buffer_piece,
    canonical,
    persistent_buffers,
)


class TorchState:
    """Reads and writes the state of one module and its optimizer."""

    def __init__(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, rank: int, world_size: int
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._rank, self._world = rank, world_size
        self.updates = 0
        if optimizer is not None:
            optimizer.register_step_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self.updates += 1

    def create(self) -> None:
        """Give the optimizer its state before the first step, as that step would: with gradients and a rate of 0."""
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
        return self._share(self._rank, self._world)

    def _share(self, rank: int, world_size: int) -> Iterator[PieceData]:
        for name, kind, tensor in self._tensors(optimizer=True):
            piece = _written(name, kind, tensor, rank, world_size)
            if piece is not None and piece.numel:
                yield piece, partial(_local, tensor, piece)
        if rank == 0:
            for name, buffer in persistent_buffers(self._module).items():
                yield buffer_piece(name, buffer), buffer.detach().cpu().flatten()

    def alone(self) -> Iterator[PieceData] | None:
        tensors = [tensor for _, _, tensor in self._tensors(optimizer=True)]
        shared_out = any(isinstance(tensor, DTensor) for tensor in tensors)
        # Without an optimizer of ours, and in buffers, a step that is not over may have changed something already.
        if self._optimizer is None or shared_out or persistent_buffers(self._module):
            return None
        return self._share(0, 1)

    def optimizer_steps(self) -> dict[str, int]:
        states = {name: self._state(parameter) for name, parameter in self._parameters()}
        return {name: int(state["step"]) for name, state in states.items() if "step" in state}

    def wanted(self, *, optimizer: bool) -> Iterator[Piece]:
        if optimizer:
            self.create()
        for name, kind, tensor in self._tensors(optimizer=optimizer):
            piece = _held(name, kind, tensor)
            if piece.numel:
                yield piece
        for name, buffer in persistent_buffers(self._module).items():
            yield buffer_piece(name, buffer)

    @torch.no_grad()
    def restore(self, read: Read, steps: Mapping[str, int] | None) -> None:
        if steps is not None:
            self.create()
        for name, kind, tensor in self._tensors(optimizer=steps is not None):
            piece = _held(name, kind, tensor)
            target = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if piece.numel:
                target.copy_(read(piece).view(target.shape))
        for name, buffer in persistent_buffers(self._module).items():
            buffer.copy_(read(buffer_piece(name, buffer)).view(buffer.shape))
        for name, parameter in self._parameters() if steps is not None else ():
            state = self._state(parameter)
            if steps is not None and "step" in state:
                step = steps[name]
                state["step"] = state["step"].fill_(step) if isinstance(state["step"], torch.Tensor) else step

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """By canonical name, tied ones once. FSDP2 leaves some gathered after a forward: they are cut up again."""
        for module in self._module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        for name, parameter in self._module.named_parameters():
            yield canonical(name), parameter

    def _state(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        return self._optimizer.state.get(parameter, {}) if self._optimizer else {}

    def _tensors(self, *, optimizer: bool) -> Iterator[tuple[str, Kind, torch.Tensor]]:
        for name, parameter in self._parameters():
            yield name, "weight", parameter.data
            state = self._state(parameter) if optimizer else {}
            _refuse_unknown(name, state)
            for kind in MOMENTS:
                if kind in state:
                    yield name, kind, state[kind]


def _written(name: str, kind: Kind, tensor: torch.Tensor, rank: int, world_size: int) -> Piece | None:
    """The part of a tensor that a rank writes."""
    if isinstance(tensor, DTensor):
        return _held(name, kind, tensor) if _is_first_replica(tensor) else None
    return Piece(name, kind, tuple(tensor.shape), split_range(tensor.numel(), world_size)[rank])


def _held(name: str, kind: Kind, tensor: torch.Tensor) -> Piece:
    """The part of a tensor that this rank holds, also where another one writes it."""
    if not isinstance(tensor, DTensor):
        return whole(name, kind, tuple(tensor.shape))
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Piece(name, kind, tuple(tensor.shape), Box(tuple(offsets), tuple(sizes)))


def _local(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    assert isinstance(piece.index, Range)
    return tensor.detach().reshape(-1)[piece.index.a : piece.index.b]


def _is_first_replica(tensor: DTensor) -> bool:
    coordinate = tensor.device_mesh.get_coordinate()
    return coordinate is not None and all(
        position == 0
        for position, placement in zip(coordinate, tensor.placements, strict=True)
        if placement.is_replicate()
    )


def _refuse_unknown(name: str, state: Mapping[str, Any]) -> None:
    unknown = sorted(set(state) - {"step", *MOMENTS})
    if unknown:
        raise UserError(
            f"the optimizer keeps {', '.join(unknown)} for {name}, which checkpoints do not know",
            why="they store the states of Adam's family (exp_avg, exp_avg_sq, step) under canonical names",
            fix="use Adam, AdamW or an optimizer without state (plain SGD) with ctx.track",
            reason="optimizer_state_unknown",
        )
