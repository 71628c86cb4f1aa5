"""A small run in a store: saved at some world, read back, damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.unit.checkpoint.memory_store import MemoryStore
from tests.unit.checkpoint.ranks import Cut, Tensors, cut_flat, pieces_of, run_ranks
from warpbeam.checkpoint.log import Claim, RunLog
from warpbeam.checkpoint.restore import CheckpointReader
from warpbeam.checkpoint.save import Broadcast, CheckpointSave, Gather, SavedCheckpoint, TrainState
from warpbeam.storage.store import ObjectStore


def save_checkpoint(
    store: ObjectStore,
    claim: Claim,
    *,
    gather: Gather = lambda value: [value],
    broadcast: Broadcast = lambda value: value,
    **asked: Any,
) -> SavedCheckpoint:
    """A save from begin to end; collective where it is given collectives."""
    save = CheckpointSave(store, claim, **asked)
    save.collect(gather)
    return save.outcome(broadcast)


def make_tensors(shapes: list[tuple[int, ...]], seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for number, shape in enumerate(shapes):
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            tensors[kind, f"layer.{number}"] = torch.randn(shape, generator=generator)
    tensors["buffer", "counter"] = torch.tensor([3, 1 << 40])
    return tensors


def save(
    store: MemoryStore,
    tmp: Path,
    tensors: Tensors,
    *,
    step: int = 1,
    world: int = 2,
    cut: Cut = cut_flat,
    claim: Claim | None = None,
    state: dict[str, Any] | None = None,
    number: int = 1,
) -> list[Any]:
    claim = claim or RunLog(store, "team", "run").claim("a1")
    return run_ranks(
        world,
        lambda rank, gather, broadcast: save_checkpoint(
            store,
            claim,
            step=step,
            rank=rank,
            pieces=pieces_of(tensors, cut, rank, world),
            state=TrainState(state or {"step": step}, {"layer.0": step}, job_digest="j", data_fingerprint="d"),
            rng={"torch": torch.full((4,), rank, dtype=torch.uint8)},
            gather=gather,
            broadcast=broadcast,
            tmp=tmp / "shards",
            number=number,
        ),
    )


def restored(reader: CheckpointReader, tensors: Tensors, cut: Cut, rank: int, world: int) -> bool:
    """Whether the rank reads exactly its part of every tensor."""
    wanted = list(pieces_of(tensors, cut, rank, world))
    reader.fetch([piece for piece, _ in wanted])
    return all(torch.equal(reader.read(piece), expected) for piece, expected in wanted)


def spoil(store: MemoryStore, key: str, damage: str | None) -> None:
    """Remove an object, flip a bit in its middle, or cut its end off."""
    data = bytearray(store.objects.pop(key))
    if damage == "flip":
        data[len(data) // 2] ^= 1
        store.objects[key] = bytes(data)
    if damage == "cut":
        store.objects[key] = bytes(data[:-1])
