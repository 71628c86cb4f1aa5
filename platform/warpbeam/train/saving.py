"""Checkpoints of a tracked state: when and what is `Context`'s business, the protocol is `checkpoint/`'s.

This is the glue: collectives for the protocol, phases for the clock, events for the record, folders on this node. A
save stops the loop only while the state is copied to host memory. From then on it is *pending*: each rank uploads its
shard beside the training; the step's own all-reduce tells everyone when all shards have arrived and when rank 0 has
committed (`Progress`), so a save in the background costs the loop no collective of its own until then.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from warpbeam.checkpoint.restore import CheckpointReader, restore_newest
from warpbeam.checkpoint.retention import retain, sweep
from warpbeam.checkpoint.save import CheckpointSave, SavedCheckpoint, TrainState
from warpbeam.checkpoint.snapshot import HostSnapshot
from warpbeam.errors import InfraError
from warpbeam.record import keys
from warpbeam.record.phases import Phase, PhaseClock
from warpbeam.storage.bandwidth import Bandwidth
from warpbeam.storage.store import StoreSetupError
from warpbeam.train.metrics import Sink
from warpbeam.train.ranks import Ranks
from warpbeam.train.strategies.base import Saved

if TYPE_CHECKING:
    import torch

    from warpbeam.checkpoint.log import Claim
    from warpbeam.job import CheckpointSpec
    from warpbeam.storage.store import ObjectStore

log = logging.getLogger(__name__)

WORTH_SAYING_S = 0.1
WAIT_S = 1.0
ABANDON_S = 5.0


@dataclass(frozen=True)
class Restored:
    """What came back besides tensors: the step, the recipe's own JSON, this rank's random states where it had any."""

    step: int
    state: Mapping[str, Any]
    rng: dict[str, torch.Tensor] | None


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a manifest says about where a checkpoint comes from."""

    job_digest: str
    data_fingerprint: str
    plan: Mapping[str, Any]
    versions: Mapping[str, str]


class Progress(NamedTuple):
    """How far the pending save is: on one rank 0 or 1 each, and summed over the ranks what all need to know."""

    uploaded: float = 0.0
    committed: float = 0.0


class Checkpoints:
    """Saves and restores the state of one run. Every method but `progress` is collective.

    Use as a context manager: a save that is pending when a failure ends the block is given up.
    """

    def __init__(
        self,
        store: ObjectStore,
        claim: Claim,
        ranks: Ranks,
        *,
        sink: Sink,
        clock: PhaseClock,
        identity: Identity,
        asked: CheckpointSpec,
        scratch: Path,
    ) -> None:
        """
        Args:
            asked: the job's wishes: what to keep, and whether saves go on in the background.
            scratch: a folder on this node's disk.
        """
        self._store = store
        self._claim = claim
        self._ranks = ranks
        self._sink = sink
        self._clock = clock
        self._identity = identity
        self._asked = asked
        self._scratch = scratch
        self._shards = scratch / "save" / claim.log.team / claim.log.run
        self._swept = False
        self._snapshot = HostSnapshot()
        self._saves: Counter[int] = Counter()
        self._limit = Bandwidth(asked.upload_limit_mb_per_s * 1e6) if asked.upload_limit_mb_per_s else None
        self._pending: CheckpointSave | None = None
        self._began_at = self._stall_s = 0.0
        self._newest = 0

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """After a failure nobody collects the pending save: give up this rank's upload. Not collective."""
        if kind is not None and self._pending is not None:
            self._pending.abandon(ABANDON_S)

    def restore(self, state: Saved) -> Restored | None:
        """Put the newest whole checkpoint into `state`; None when the run has none."""
        self._remove_leftovers()
        cache = self._scratch / "restore" / self._claim.attempt

        def put(reader: CheckpointReader) -> None:
            state.restore(reader.read, reader.manifest.optimizer_steps)

        started = time.monotonic()
        with self._clock.phase(Phase.CHECKPOINT):
            reader = restore_newest(
                self._store,
                self._claim.log.team,
                self._claim.log.run,
                put,
                cache_dir=cache,
                rank=self._ranks.rank,
                wanted=state.wanted(optimizer=True),
                all_gather=self._ranks.all_gather,
                on_event=lambda name, fields: self._sink.event(name, **fields),
            )
            if reader is None:
                return None
            self._newest = reader.step
            restored = Restored(reader.step, reader.state, reader.rng(self._ranks.rank))
            reader.close()
            self._ranks.all_gather(None)  # nobody reads the cache any more
            if self._ranks.local_rank == 0:
                shutil.rmtree(cache, ignore_errors=True)
        seconds = time.monotonic() - started
        self._sink.event(
            "restored",
            step=reader.step,
            from_attempt=reader.manifest.attempt,
            from_world=reader.manifest.world,
            seconds=round(seconds, 3),
        )
        return restored

    def _remove_leftovers(self) -> None:
        """Shards that killed attempts of this run left on the node's disk: each may be as large as the state."""
        if self._ranks.local_rank == 0 and self._shards.is_dir():
            for folder in self._shards.iterdir():
                if folder.name != self._claim.attempt:
                    shutil.rmtree(folder, ignore_errors=True)

    def reserve(self, state: Saved) -> None:
        """Make room for the copies of `state`, beside whatever else is done before the first of them."""
        if self._asked.background:
            self._snapshot.reserve(piece for piece, _ in state.pieces())

    def save(
        self, state: Saved, step: int, train_state: Mapping[str, Any], rng: Mapping[str, torch.Tensor]
    ) -> SavedCheckpoint | None:
        """Begin to save the state after `step`; an earlier save that is still pending is waited for.

        Returns that earlier one once it is committed; raises what it failed with.
        """
        earlier = self.settle()
        with self._clock.phase(Phase.CHECKPOINT):
            self._began_at = time.monotonic()
            pieces = self._snapshot.take(state.pieces()) if self._asked.background else state.pieces()
            self._saves[step] += 1
            self._pending = CheckpointSave(
                self._store,
                self._claim,
                step=step,
                rank=self._ranks.rank,
                pieces=pieces,
                state=self._train_state(state, train_state),
                rng=rng,
                tmp=self._shards / self._claim.attempt,
                number=self._saves[step],
                limit=self._limit,
                after_commit=self._tidy,
            )
            self._stall_s = time.monotonic() - self._began_at
        return earlier if self._asked.background else self.settle()

    def save_alone(self, state: Saved, step: int, train_state: Mapping[str, Any]) -> SavedCheckpoint | None:
        """Save the whole state after `step` from this rank, after a failure of the others. Not collective.

        None when there is nothing to save, or another rank does it: who creates the key is the one.
        """
        pieces = state.alone()
        if pieces is None or step <= self._newest:
            return None
        if self._pending is not None:
            self._pending.abandon(ABANDON_S)
            self._pending = None
        log_, me = self._claim.log, f"rank-{self._ranks.rank}".encode()
        key = keys.survivor(log_.team, log_.run, self._claim.attempt)
        if not self._store.put_if_absent(key, me) and self._store.get(key) != me:
            return None
        began_at = time.monotonic()
        save = CheckpointSave(
            self._store,
            self._claim,
            step=step,
            rank=0,  # the only one
            pieces=pieces,
            state=self._train_state(state, train_state),
            tmp=self._shards / self._claim.attempt,
            number=self._saves[step] + 1,
            limit=self._limit,
        )
        self._wait(save)
        save.collect(lambda mine: [mine])
        self._wait(save)
        saved = save.outcome(lambda fate: fate)
        seconds = round(time.monotonic() - began_at, 3)
        self._sink.event("checkpoint", step=step, bytes=saved.size, seconds=seconds, alone=self._ranks.rank)
        log.warning("the attempt has failed; rank %d has saved step %d alone", self._ranks.rank, step)
        return saved

    def _train_state(self, state: Saved, train_state: Mapping[str, Any]) -> TrainState:
        return TrainState(
            state=train_state,
            optimizer_steps=state.optimizer_steps(),
            job_digest=self._identity.job_digest,
            data_fingerprint=self._identity.data_fingerprint,
            plan=self._identity.plan,
            versions=self._identity.versions,
        )

    @property
    def pending(self) -> bool:
        """Whether a save is neither committed nor failed yet, as far as this rank was told."""
        return self._pending is not None

    def progress(self) -> Progress:
        """This rank's part of what the step's all-reduce sums up."""
        if self._pending is None:
            return Progress()
        return Progress(float(self._pending.uploaded), float(self._pending.committed))

    def advance(self, total: Progress) -> SavedCheckpoint | None:
        """Take the pending save as far as the sum over all ranks says that it goes without waiting.

        Returns the checkpoint once it is committed; raises what a save failed with.
        """
        if self._pending is None:
            return None
        if not self._pending.collected and total.uploaded == self._ranks.world_size:
            self._pending.collect(self._ranks.gather)
        elif total.committed:
            return self._settled(self._pending)
        return None

    def settle(self) -> SavedCheckpoint | None:
        """Wait for the pending save, if there is one."""
        if self._pending is None:
            return None
        with self._clock.phase(Phase.CHECKPOINT):
            started = time.monotonic()
            if not self._pending.collected:
                self._wait(self._pending)
                self._pending.collect(self._ranks.gather)
            self._wait(self._pending)
            saved = self._settled(self._pending)
            waited_s = time.monotonic() - started
        if self._ranks.is_first and waited_s > WORTH_SAYING_S:
            self._sink.event("checkpoint_waited", step=saved.step, seconds=round(waited_s, 3))
            log.info("waited %.1f s for the checkpoint of step %d to be committed", waited_s, saved.step)
        return saved

    def _wait(self, save: CheckpointSave) -> None:
        """A slow store is no stalled rank: waiting for it is progress, as long as the store's own deadlines hold."""
        while not save.wait(WAIT_S):
            self._sink.beat(save.step, "checkpoint")

    def _settled(self, save: CheckpointSave) -> SavedCheckpoint:
        self._pending = None
        saved = save.outcome(self._ranks.broadcast)
        self._newest = saved.step
        if self._ranks.is_first:
            seconds = round(time.monotonic() - self._began_at, 3)
            self._sink.event(
                "checkpoint", step=saved.step, bytes=saved.size, seconds=seconds, stall_s=round(self._stall_s, 3)
            )
            log.info("checkpoint of step %d: %.1f MB in %.1f s", saved.step, saved.size / 1e6, seconds)
        return saved

    def _tidy(self) -> None:
        """Give up what is old. A store that fails here costs space, not the run: the commit is made."""
        try:
            for commit in retain(self._store, self._claim, self._asked.keep, self._asked.keep_every):
                self._sink.event("checkpoint_deleted", step=commit.step)
            if not self._swept:  # what crashes of earlier attempts left; not while the first step is waited for
                sweep(self._store, self._claim)
                self._swept = True
        except StoreSetupError as error:  # some give no right to list unfinished uploads
            self._swept = True
            log.warning("what earlier attempts left could not be swept: %s", error)
        except InfraError as error:  # also `Fenced`: the next save says so on every rank
            log.warning("old checkpoints could not be removed, which is tried again at the next one: %s", error.what)
            self._sink.event("tidy_failed", what=error.what)
