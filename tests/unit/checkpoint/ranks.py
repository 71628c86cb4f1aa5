"""Several ranks in one process: threads that meet in gather and broadcast, and ways of cutting tensors among them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from warpbeam.checkpoint.pieces import Box, Piece, Range, split_range
from warpbeam.checkpoint.save import Broadcast, Gather

Tensors = dict[tuple[str, str], torch.Tensor]
"""(kind, name) -> the whole tensor."""
Cut = Callable[[tuple[int, ...], int, int], list[Range | Box]]
"""(shape, rank, world) -> the indices that the rank holds."""


def run_ranks(world: int, rank_main: Callable[[int, Gather, Broadcast], Any]) -> list[Any]:
    """Call `rank_main(rank, gather, broadcast)` on `world` threads; its results, or the exceptions it raised."""
    meet = threading.Barrier(world, timeout=30)
    given: list[Any] = [None] * world
    results: list[Any] = [None] * world

    def exchange(rank: int, value: Any) -> list[Any]:
        given[rank] = value
        meet.wait()
        everyone = list(given)
        meet.wait()
        return everyone

    def run(rank: int) -> None:
        def gather(value: Any) -> list[Any] | None:
            everyone = exchange(rank, value)
            return everyone if rank == 0 else None

        try:
            results[rank] = rank_main(rank, gather, lambda value: exchange(rank, value)[0])
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def cut_flat(shape: tuple[int, ...], rank: int, world: int) -> list[Range | Box]:
    """As ZeRO-3: one range of ceil(n / world); padding is nobody's."""
    part = split_range(_numel(shape), world)[rank]
    return [part] if part.b > part.a else []


def cut_dim(dim: int) -> Cut:
    """As FSDP2 and tensor parallelism: chunks along one dimension, the last ones shorter or empty."""

    def cut(shape: tuple[int, ...], rank: int, world: int) -> list[Range | Box]:
        if not shape:
            return [Range(0, 1)] if rank == 0 else []
        axis = min(dim, len(shape) - 1)
        part = split_range(shape[axis], world)[rank]
        if part.a == part.b or _numel(shape) == 0:
            return []
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[axis], sizes[axis] = part.a, part.b - part.a
        return [Box(tuple(offsets), tuple(sizes))]

    return cut


def cut_buckets(shape: tuple[int, ...], rank: int, world: int) -> list[Range | Box]:
    """As ZeRO-1/2: a bucket's boundary falls anywhere; a rank may hold two ranges of one tensor, or none."""
    total = _numel(shape)
    bounds = sorted({0, total, *(total * i * i // (4 * world * world) for i in range(1, 2 * world))})
    parts = [Range(a, b) for a, b in itertools.pairwise(bounds)]
    return list(parts[rank::world])


def local(tensor: torch.Tensor, index: Range | Box) -> torch.Tensor:
    """The elements that a piece holds, in the shape that it carries."""
    if isinstance(index, Range):
        return tensor.reshape(-1)[index.a : index.b].clone()
    return tensor[tuple(slice(o, o + s) for o, s in zip(index.offsets, index.sizes, strict=True))].clone()


def pieces_of(tensors: Tensors, cut: Cut, rank: int, world: int) -> Iterator[tuple[Piece, torch.Tensor]]:
    """What a rank holds of every tensor; buffers are rank 0's."""
    for (kind, name), tensor in tensors.items():
        shape = tuple(tensor.shape)
        if kind == "buffer":
            indices: list[Range | Box] = [Range(0, tensor.numel())] if rank == 0 else []
        else:
            indices = cut(shape, rank, world)
        for index in indices:
            yield Piece(name, kind, shape, index), local(tensor, index)  # type: ignore[arg-type]


def _numel(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
