"""What the engine hands to a Context: everything that was decided before the loop begins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.train.callbacks.base import Callbacks

if TYPE_CHECKING:
    import torch

    from warpbeam.data.dataset import Dataset
    from warpbeam.job import Job
    from warpbeam.plan.plan import Plan
    from warpbeam.record.phases import PhaseClock
    from warpbeam.storage.config import StorageConfig
    from warpbeam.storage.store import ObjectStore
    from warpbeam.train.metrics import Sink
    from warpbeam.train.ranks import Ranks
    from warpbeam.train.saving import Checkpoints


@dataclass(kw_only=True)
class Setup:
    """What the engine hands to a Context.

    Attributes:
        scratch: a folder on this node's disk, shared by its ranks.
        peak_flops: of one accelerator, where it is known.
        stop: set by whoever wants this process to stop (a signal handler of the launcher's).
    """

    job: Job
    plan: Plan
    root: Path
    attempt: str
    storage: StorageConfig
    store: ObjectStore
    ranks: Ranks
    device: torch.device
    sink: Sink
    clock: PhaseClock
    checkpoints: Checkpoints
    train_data: Dataset
    eval_data: Dataset | None
    tokenizer: Any
    total_steps: int
    scratch: Path
    peak_flops: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    callbacks: Callbacks = field(default_factory=lambda: Callbacks([]))

    @contextmanager
    def left_when_done(self) -> Iterator[None]:
        """Around the loop over batches: however a loop ends, the record says that this rank is not in it any more."""
        try:
            yield
        finally:
            self.sink.left_loop()
