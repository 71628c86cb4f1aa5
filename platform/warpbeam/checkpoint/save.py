"""Saving a checkpoint: every rank writes and uploads its shard, then rank 0 alone makes it real.

The order is the protocol (DESIGN section 5.5): shards, manifest, commit entry. Killed at any instant, the newest
committed checkpoint is whole, because nothing is overwritten and only the commit makes anything visible. Collectives
are given by the caller as two functions, so this file knows no launcher; a rank that fails makes all ranks raise the
same error instead of leaving the others waiting.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.checkpoint.log import Claim
from warpbeam.checkpoint.manifest import FileEntry, Manifest, PieceEntry, RngEntry, TensorEntry
from warpbeam.checkpoint.shard import ShardInfo, write_shard
from warpbeam.errors import InfraError, RunFailed, WarpbeamError
from warpbeam.storage import layout

if TYPE_CHECKING:
    import torch

    from warpbeam.checkpoint.shard import PieceData
    from warpbeam.storage.store import ObjectStore

logger = logging.getLogger(__name__)

Gather = Callable[[Any], "list[Any] | None"]
"""Collective: every rank gives an object; rank 0 gets all of them in rank order, the others None."""
Broadcast = Callable[[Any], Any]
"""Collective: every rank gets rank 0's object."""


@dataclass(frozen=True)
class TrainState:
    """What rank 0 knows besides tensors. All of it is JSON.

    Args:
        state: the recipe's own: step, data position, lr, loss scaler, tokens seen and so on. `eval_loss`, when it was
            measured at this step, decides which checkpoint is the best. NaN and infinity become null.
        optimizer_steps: the optimizer's step counter by parameter or group name.
    """

    state: Mapping[str, Any] = field(default_factory=dict)
    optimizer_steps: Mapping[str, int] = field(default_factory=dict)
    job_digest: str | None = None
    data_fingerprint: str | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SavedCheckpoint:
    """A committed checkpoint. `size` is all ranks' files together, in bytes."""

    step: int
    manifest: str
    sha256: str
    size: int


class SaveFailed(InfraError):
    """A rank could not write or upload its shard, for a cause without a class of its own."""

    default_reason = "save_failed"


def save_checkpoint(
    store: ObjectStore,
    claim: Claim,
    *,
    step: int,
    rank: int,
    pieces: Iterable[PieceData],
    state: TrainState,
    rng: Mapping[str, torch.Tensor] | None = None,
    gather: Gather = lambda value: [value],
    broadcast: Broadcast = lambda value: value,
    tmp: Path,
) -> SavedCheckpoint:
    """Save the state of all ranks as the checkpoint of `step`. Collective: all ranks call it and share its fate.

    Args:
        claim: the attempt's claim; used by rank 0 only.
        pieces: this rank's part of the state; all ranks together hold every element exactly once.
        state: rank 0's is stored.
        rng: this rank's random states (`capture_rng()`).
        tmp: local folder for the shard until it is uploaded.

    Raises:
        Fenced: another attempt has claimed the run.
        InfraError: disk full, storage not reachable after the store's own retries.
        PlatformError: the store refuses for good.
    """
    prefix: str = _agree(broadcast, rank, lambda: _new_prefix(store, claim, step))
    mine: _Uploaded | WarpbeamError
    try:
        mine = _write_and_upload(store, f"{prefix}/rank-{rank:05d}.safetensors", pieces, rng, tmp)
    except Exception as error:
        mine = _as_ours(error, rank)
    everyone = gather(mine)
    saved: SavedCheckpoint = _agree(broadcast, rank, lambda: _commit(store, claim, step, prefix, everyone or [], state))
    return saved


@dataclass(frozen=True)
class _Uploaded:
    key: str
    shard: ShardInfo


def _agree(broadcast: Broadcast, rank: int, decide: Callable[[], Any]) -> Any:
    """Rank 0 decides; everyone gets its answer, or raises its error."""
    outcome: Any = None
    if rank == 0:
        try:
            outcome = decide()
        except Exception as error:
            outcome = _as_ours(error, rank)
    outcome = broadcast(outcome)
    if isinstance(outcome, WarpbeamError):
        raise outcome
    return outcome


def _new_prefix(store: ObjectStore, claim: Claim, step: int) -> str:
    """Where this save goes: a folder that nobody has written to, not even an earlier try of this attempt."""
    claim.check()
    tries = 1
    while True:
        folder = claim.attempt if tries == 1 else f"{claim.attempt}.{tries}"
        prefix = layout.checkpoint_prefix(claim.log.team, claim.log.run, step, folder)
        if next(iter(store.list(prefix + "/")), None) is None:
            return prefix
        tries += 1


def _write_and_upload(
    store: ObjectStore, key: str, pieces: Iterable[PieceData], rng: Mapping[str, torch.Tensor] | None, tmp: Path
) -> _Uploaded:
    path = tmp / f"{os.getpid()}-{key.rpartition('/')[2]}"
    try:
        shard = write_shard(pieces, path, rng)
        store.upload(path, key)
    finally:
        path.unlink(missing_ok=True)
    return _Uploaded(key, shard)


def _commit(
    store: ObjectStore,
    claim: Claim,
    step: int,
    prefix: str,
    everyone: list[_Uploaded | WarpbeamError],
    state: TrainState,
) -> SavedCheckpoint:
    uploaded = []
    for result in everyone:
        if isinstance(result, WarpbeamError):
            raise result
        uploaded.append(result)
    manifest = _manifest(claim, step, uploaded, state)
    fault = manifest.fault()
    if fault:
        raise _incomplete(step, fault)
    data, key = manifest.to_bytes(), f"{prefix}/manifest.json"
    store.put(key, data)
    sha256 = hashlib.sha256(data).hexdigest()
    claim.commit(step, key, sha256, size=manifest.total_bytes, eval_loss=manifest.eval_loss)
    return SavedCheckpoint(step, key, sha256, manifest.total_bytes)


def _manifest(claim: Claim, step: int, uploaded: list[_Uploaded], state: TrainState) -> Manifest:
    numbers: dict[tuple[str, str], int] = {}
    tensors: list[TensorEntry] = []
    pieces: list[PieceEntry] = []
    rng: list[RngEntry] = []
    for rank, result in enumerate(uploaded):
        for piece, dtype, offset, crc32 in result.shard.pieces:
            number = numbers.setdefault((piece.kind, piece.name), len(tensors))
            if number == len(tensors):
                tensors.append(TensorEntry(name=piece.name, kind=piece.kind, shape=piece.shape, dtype=dtype))
            elif (tensors[number].shape, tensors[number].dtype) != (piece.shape, dtype):
                raise _incomplete(step, f"ranks disagree about the shape or dtype of {piece.kind} {piece.name}")
            pieces.append(PieceEntry.of(piece, tensor=number, file=rank, offset=offset, crc32=crc32))
        rng += [RngEntry(rank=rank, name=n, file=rank, offset=o, size=s) for n, o, s in result.shard.rng]
    return Manifest(
        team=claim.log.team,
        run=claim.log.run,
        attempt=claim.attempt,
        step=step,
        world=len(uploaded),
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        files=[
            FileEntry(key=result.key, size=result.shard.size, sha256=result.shard.sha256, rank=rank)
            for rank, result in enumerate(uploaded)
        ],
        tensors=tensors,
        pieces=pieces,
        rng=rng,
        optimizer_steps=dict(state.optimizer_steps),
        train_state=dict(state.state),
        job_digest=state.job_digest,
        data_fingerprint=state.data_fingerprint,
        plan=dict(state.plan),
        versions=dict(state.versions),
    )


def _incomplete(step: int, fault: str) -> RunFailed:
    return RunFailed(
        f"the checkpoint of step {step} was not committed: {fault}",
        why="the ranks together must hold every element of every tensor exactly once",
        reason="checkpoint_incomplete",
    )


def _as_ours(error: Exception, rank: int) -> WarpbeamError:
    """Errors that cross ranks must pickle and say what to do; an unexpected one keeps its own words."""
    if isinstance(error, WarpbeamError):
        return error
    logger.error("rank %d failed to save", rank, exc_info=error)
    return SaveFailed(f"rank {rank} failed to save its checkpoint", why=f"{type(error).__name__}: {error}")
