"""Checkpoints of a tracked state: when and what is `Context`'s business, the protocol is `checkpoint/`'s.

This is the glue: collectives for the protocol, phases for the clock, events for the record, folders on this node.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.checkpoint.restore import CheckpointReader, restore_newest
from warpbeam.checkpoint.retention import retain, sweep
from warpbeam.checkpoint.save import SavedCheckpoint, TrainState, save_checkpoint
from warpbeam.errors import InfraError
from warpbeam.record.phases import Phase, PhaseClock
from warpbeam.train.metrics import Sink
from warpbeam.train.ranks import Ranks
from warpbeam.train.strategies.base import Saved

if TYPE_CHECKING:
    import torch

    from warpbeam.checkpoint.log import Claim
    from warpbeam.storage.store import ObjectStore

log = logging.getLogger(__name__)


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


class Checkpoints:
    """Saves and restores the state of one run. Every method is collective."""

    def __init__(
        self,
        store: ObjectStore,
        claim: Claim,
        ranks: Ranks,
        *,
        sink: Sink,
        clock: PhaseClock,
        identity: Identity,
        keep: int,
        scratch: Path,
    ) -> None:
        self._store = store
        self._claim = claim
        self._ranks = ranks
        self._sink = sink
        self._clock = clock
        self._identity = identity
        self._keep = keep
        self._scratch = scratch
        self._swept = False

    def restore(self, state: Saved) -> Restored | None:
        """Put the newest whole checkpoint into `state`; None when the run has none."""
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

    def save(
        self, state: Saved, step: int, train_state: Mapping[str, Any], rng: Mapping[str, torch.Tensor]
    ) -> SavedCheckpoint:
        """Commit the state after `step` and give up old ones."""
        started = time.monotonic()
        self._scratch.mkdir(parents=True, exist_ok=True)
        with (
            self._clock.phase(Phase.CHECKPOINT),
            tempfile.TemporaryDirectory(prefix=f"save-{self._ranks.rank}-", dir=self._scratch) as folder,
        ):
            saved = save_checkpoint(
                self._store,
                self._claim,
                step=step,
                rank=self._ranks.rank,
                pieces=state.pieces(),
                state=TrainState(
                    state=train_state,
                    optimizer_steps=state.optimizer_steps(),
                    job_digest=self._identity.job_digest,
                    data_fingerprint=self._identity.data_fingerprint,
                    plan=self._identity.plan,
                    versions=self._identity.versions,
                ),
                rng=rng,
                gather=self._ranks.gather,
                broadcast=self._ranks.broadcast,
                tmp=Path(folder),
            )
            if self._ranks.is_first:
                self._tidy()
        if self._ranks.is_first:
            seconds = round(time.monotonic() - started, 3)
            self._sink.event("checkpoint", step=step, bytes=saved.size, seconds=seconds)
            log.info("checkpoint of step %d: %.1f MB in %.1f s", step, saved.size / 1e6, seconds)
        return saved

    def _tidy(self) -> None:
        """Give up what is old. A store that fails here costs space, not the run: the commit is made."""
        try:
            for commit in retain(self._store, self._claim, self._keep):
                self._sink.event("checkpoint_deleted", step=commit.step)
            if not self._swept:  # what crashes of earlier attempts left; not while the first step is waited for
                sweep(self._store, self._claim)
                self._swept = True
        except InfraError as error:  # also `Fenced`: the next save says so on every rank
            log.warning("old checkpoints could not be removed, which is tried again at the next one: %s", error.what)
            self._sink.event("tidy_failed", what=error.what)
