"""What the engine needs from a way of spreading a model over ranks, and nothing more.

A strategy owns parameters, gradients and optimizer state. It does no I/O: its state leaves as `pieces()` in the model's own
parameter names, and enters through `read`, which fetches just the box or range that is asked for. So checkpoints know
nothing of strategies, and any strategy at any world size reads what any other wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from warpbeam.checkpoint.pieces import Piece

if TYPE_CHECKING:
    import torch

PieceData = tuple[Piece, "torch.Tensor"]
Read = Callable[[Piece], "torch.Tensor"]

# Optimizer states that a checkpoint stores beside the weights, by the names that torch's AdamW gives them.
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """The optimizer of the built-in recipes. Norms and biases (1-D parameters) are not decayed."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.01


class Strategy(Protocol):
    """One model and its optimizer on this rank. Every method is called by all ranks, in the same order."""

    name: str
    module: torch.nn.Module
    """What the loop calls for a forward pass."""
    grad_scale: float
    """Multiply a loss by this before a bare `backward()`, so that gradients become sums over ranks, not means."""

    def micro_step(self, *, last: bool) -> AbstractContextManager[None]:
        """Wraps the forward and backward of one micro-batch; `last` ends the accumulation."""

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate gradients of `loss`, a share of a sum over all ranks and micro-batches. Scales by `grad_scale`."""

    def step(self, lr: float) -> float:
        """Clip, update, clear gradients. Returns the global gradient norm before clipping."""

    def pieces(self) -> Iterator[PieceData]:
        """This rank's share of weights (float32 masters), moments and buffers, as host tensors; all ranks cover each once."""

    def optimizer_steps(self) -> dict[str, int]:
        """How many updates each parameter's optimizer state has seen."""

    def restore(self, read: Read, steps: Mapping[str, int] | None) -> None:
        """Fill weights and buffers, and with `steps` also the optimizer, from a checkpoint or (without) from a base model."""


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
