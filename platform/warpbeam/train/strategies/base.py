"""What the engine needs from a way of spreading a model over ranks, and nothing more.

A strategy owns parameters, gradients and optimizer state. It does no I/O: its state leaves as `pieces()` in the model's
own parameter names, and enters through `read`, which fetches just the box or range that is asked for. So checkpoints
know nothing of strategies, and any strategy at any world size reads what any other wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from warpbeam.checkpoint.pieces import Kind, Piece, whole

Produce = Callable[[], torch.Tensor]
PieceData = tuple[Piece, torch.Tensor | Produce]
Read = Callable[[Piece], torch.Tensor]

# Optimizer states that a checkpoint stores beside the weights, by the names that torch's AdamW gives them.
MOMENTS: tuple[Kind, Kind] = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """The optimizer of the built-in recipes. Norms and biases (1-D parameters) are not decayed."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.01


class Saved(Protocol):
    """State that checkpoints can save and restore. Every method is called by all ranks, in the same order."""

    @property
    def updates(self) -> int:
        """How many updates this rank's optimizer has begun, where `alone` may give something."""

    def pieces(self) -> Iterator[PieceData]:
        """This rank's share of float32 masters, moments and buffers; all ranks together cover each element once.

        A host tensor is given ready, or any as a function that finds it where it lives when its turn comes.
        """

    def alone(self) -> Iterator[PieceData] | None:
        """The whole state, where this rank holds all of it and nothing but the optimizer changes it. Not collective."""

    def optimizer_steps(self) -> dict[str, int]:
        """How many updates each parameter's optimizer state has seen."""

    def wanted(self, *, optimizer: bool) -> Iterator[Piece]:
        """What `restore` will read on this rank."""

    def restore(self, read: Read, steps: Mapping[str, int] | None) -> None:
        """Fill weights and buffers; with `steps` (of a checkpoint, not of a base model) the optimizer too."""


class Strategy(Saved, Protocol):
    """One model and its optimizer on this rank."""

    name: str
    module: torch.nn.Module
    """What the loop calls for a forward pass."""
    grad_scale: float
    """Multiply a loss by this before a bare `backward()`, so that gradients become sums over ranks, not means."""

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """Wraps the forward and backward of one micro-batch; `last` ends the accumulation."""

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate gradients of `loss`, a share of a sum over all ranks and micro-batches. Applies `grad_scale`."""

    def forward_only(self) -> AbstractContextManager[None]:
        """Wraps forward passes that nobody will differentiate, in the training precision."""

    def step(self, lr: float) -> float:
        """Clip, update, clear gradients. Returns the global gradient norm before clipping."""


def canonical(name: str) -> str:
    """A parameter's name without the prefixes that wrappers put before or between its parts."""
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
        name = name.replace(wrapper, "")
    return name


def persistent_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that belong to the model's saved state, by canonical name; shared ones once."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for prefix, child in module.named_modules():
        for name, buffer in child.named_buffers(prefix=prefix, recurse=False):
            if name.rpartition(".")[2] in child._non_persistent_buffers_set or id(buffer) in seen:
                continue
            seen.add(id(buffer))
            found[canonical(name)] = buffer
    return found


def buffer_piece(name: str, buffer: torch.Tensor) -> Piece:
    """A buffer as one whole piece."""
    return whole(name, "buffer", tuple(buffer.shape))
