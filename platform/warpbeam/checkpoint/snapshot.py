"""A copy of this rank's state in host memory, so that training goes on while the copy is written and uploaded.

One buffer is kept from save to save: its pages are touched once, and on a GPU machine they are pinned, so that the copy
runs at the speed of the link. It is as large as the rank's share of the state: 12 bytes a parameter over the world.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING

import torch

from warpbeam.checkpoint.pieces import Piece

if TYPE_CHECKING:
    from warpbeam.checkpoint.shard import PieceData

_ALIGN = 64  # bytes; a piece begins on a cache line


class HostSnapshot:
    """The buffer, and copying into it. One copy at a time: whoever takes the next must be done with the last."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None
        self._making: threading.Thread | None = None

    def reserve(self, sizes: Iterable[Piece]) -> None:
        """Make room for these pieces in the background; the first copy then finds the pages there."""
        total = sum(_aligned(4 * prod(piece.local_shape)) for piece in sizes)

        def make() -> None:
            self._buffer = _host_memory(total)

        self._making = threading.Thread(target=make, name="warpbeam-snapshot", daemon=True)
        self._making.start()

    def take(self, pieces: Iterable[PieceData]) -> list[PieceData]:
        """The pieces again, with tensors that lie in the buffer; when this returns, the state may change.

        A piece that comes as a function becomes float32, as checkpoints store it; a ready tensor keeps its dtype.
        """
        if self._making is not None:
            self._making.join()
            self._making = None
        items = list(pieces)
        sizes = [_nbytes(piece, produce) for piece, produce in items]
        total = sum(map(_aligned, sizes))
        if self._buffer is None or self._buffer.numel() < total:
            self._buffer = _host_memory(total)
        copies: list[PieceData] = []
        at = 0
        for (piece, produce), size in zip(items, sizes, strict=True):
            source = produce() if callable(produce) else produce
            dtype = torch.float32 if callable(produce) else source.dtype
            target = self._buffer[at : at + size].view(dtype).view(piece.local_shape)
            target.copy_(source.detach().view(piece.local_shape), non_blocking=True)
            copies.append((piece, target))
            at += _aligned(size)
        if self._buffer.is_pinned():
            torch.cuda.synchronize()
        return copies


def _nbytes(piece: Piece, produce: torch.Tensor | Callable[[], torch.Tensor]) -> int:
    return prod(piece.local_shape) * (4 if callable(produce) else produce.element_size())


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _host_memory(size: int) -> torch.Tensor:
    """Bytes whose pages exist."""
    pinned = torch.cuda.is_available()
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    return buffer if pinned else buffer.zero_()
