"""Saving a checkpoint: every rank writes and uploads its shard, then rank 0 alone makes it real.

The order is the protocol (DESIGN section 5.5): shards, manifest, commit entry. Killed at any instant, the newest
committed checkpoint is whole, because nothing is overwritten and only the commit makes anything visible. The work is
done on threads while training goes on; collectives are given by the caller as two functions, so this file knows no
launcher. A rank that fails makes all ranks raise the same error instead of leaving the others waiting.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
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
    from warpbeam.storage.bandwidth import Bandwidth
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


class CheckpointSave:
    """One checkpoint on its way: this rank's shard, and on rank 0 then the commit, each on a thread of its own.

    No collective happens on those threads, where it would mix with the training's. All ranks call `collect` together
    once all of them are `uploaded`, and `outcome` once rank 0 has `committed`; called earlier, both wait.
    """

    def __init__(
        self,
        store: ObjectStore,
        claim: Claim,
        *,
        step: int,
        rank: int,
        pieces: Iterable[PieceData],
        state: TrainState,
        rng: Mapping[str, torch.Tensor] | None = None,
        tmp: Path,
        number: int = 1,
        limit: Bandwidth | None = None,
        after_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to write and upload.

        Args:
            claim: the attempt's claim; used by rank 0 only.
            pieces: this rank's part of the state; all ranks together hold every element exactly once. It must not
                change until `uploaded`.
            state: rank 0's is stored.
            rng: this rank's random states (`capture_rng()`).
            tmp: local folder for the shard until it is uploaded.
            number: which save of this step by this attempt it is, from 1: each has a folder of its own.
            limit: the cap on the upload, shared with the process's other saves.
            after_commit: called on rank 0's commit thread once the checkpoint is real.
        """
        self.step = step
        self.collected = False
        self._store, self._claim, self._rank, self._state = store, claim, rank, state
        self._limit, self._given_up = limit, threading.Event()
        self._after_commit = after_commit
        folder = claim.attempt if number == 1 else f"{claim.attempt}.{number}"
        self._prefix = layout.checkpoint_prefix(claim.log.team, claim.log.run, step, folder)
        self._mine: _Uploaded | WarpbeamError | None = None
        self._fate: SavedCheckpoint | WarpbeamError | None = None
        self._uploading = _begin(f"upload-{step}", lambda: self._upload(pieces, rng, tmp))
        self._committing: threading.Thread | None = None

    @property
    def uploaded(self) -> bool:
        """Whether this rank's shard has arrived, or failed to."""
        return not self._uploading.is_alive()

    @property
    def committed(self) -> bool:
        """Whether this process has ended the commit, well or badly; rank 0 alone makes it."""
        return self._committing is not None and not self._committing.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait a while for what this process has begun; whether it has ended."""
        thread = self._committing or self._uploading
        thread.join(timeout_s)
        return not thread.is_alive()

    def abandon(self, timeout_s: float) -> None:
        """Give up this rank's upload, if it has not ended; waits so long at most for what is on its way."""
        self._given_up.set()
        self._uploading.join(timeout_s)

    def collect(self, gather: Gather) -> None:
        """Collective: rank 0 learns what all ranks have uploaded, and begins the commit."""
        self._uploading.join()
        everyone = gather(self._mine)
        self.collected = True
        if everyone is not None:
            self._committing = _begin(f"commit-{self.step}", lambda: self._commit(everyone))

    def outcome(self, broadcast: Broadcast) -> SavedCheckpoint:
        """Collective: all ranks share the save's fate.

        Raises:
            Fenced: another attempt has claimed the run.
            InfraError: disk full, storage not reachable after the store's own retries.
            PlatformError: the store refuses for good.
            RunFailed: the ranks' pieces do not make up the state.
        """
        if self._committing is not None:
            self._committing.join()
        fate: SavedCheckpoint | WarpbeamError = broadcast(self._fate)
        if isinstance(fate, WarpbeamError):
            raise fate
        return fate

    def _upload(self, pieces: Iterable[PieceData], rng: Mapping[str, torch.Tensor] | None, tmp: Path) -> None:
        name = f"rank-{self._rank:05d}.safetensors"
        path = tmp / f"{os.getpid()}-{self.step}-{name}"
        try:
            if self._rank == 0:
                self._claim.check()  # a fenced attempt should not fill the store
            shard = write_shard(pieces, path, rng)
            key = f"{self._prefix}/{name}"
            self._store.upload(path, key, limit=self._limit, cancel=self._given_up)
            self._mine = _Uploaded(key, shard)
        except Exception as error:
            self._mine = _as_ours(error, self._rank)
        finally:
            path.unlink(missing_ok=True)

    def _commit(self, everyone: list[_Uploaded | WarpbeamError]) -> None:
        try:
            self._fate = _commit(self._store, self._claim, self.step, self._prefix, everyone, self._state)
        except Exception as error:
            self._fate = _as_ours(error, 0)
        else:
            self._after_commit()


@dataclass(frozen=True)
class _Uploaded:
    key: str
    shard: ShardInfo


def _begin(name: str, work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=f"warpbeam-{name}", daemon=True)
    thread.start()
    return thread


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
