"""Data preparation beside the start of the workers: where the data will be, when ranks may begin, how many steps
there are.

A run whose length is only `max_steps` begins as soon as its sources are known: the reader waits for each window by
itself. One that counts epochs begins when everything is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warpbeam.data.dataset import open_dataset
from warpbeam.data.prepare import Preparation, PreparedData
from warpbeam.data.prepare_plan import plan_preparation
from warpbeam.job import Job
from warpbeam.storage import ObjectStore, StorageConfig

if TYPE_CHECKING:
    from warpbeam.launch.ray_session import RaySession


HELD_OUT_FIRST_S = 15.0


@dataclass(frozen=True)
class DataPlaces:
    """Prefixes of prepared data in the run's store."""

    train: str
    eval: str | None


class BackgroundPreparation:
    """Prepares a job's train and eval data on a thread; ask `places` and `total_steps` now and then."""

    def __init__(
        self,
        job: Job,
        root: Path,
        store: ObjectStore,
        config: StorageConfig,
        session: RaySession,
        *,
        on_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._job = job
        self._root = root
        self._store = store
        self._config = config
        self._session = session
        self._on_note = on_note
        self._parts: list[Preparation] = []
        self._counts: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._error: BaseException | None = None
        self._places: DataPlaces | None = None
        self._train: PreparedData | None = None
        self._thread = threading.Thread(target=self._run, name="prepare-data", daemon=True)
        self._thread.start()

    @property
    def places(self) -> DataPlaces | None:
        """Where the data is or will be, once that is known; raises what the preparation failed with."""
        self.check()
        return self._places

    @property
    def done(self) -> bool:
        """Whether everything is prepared."""
        return not self._thread.is_alive()

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """(tasks done, tasks in all, rows, tokens) of the training data so far."""
        return self._counts

    @property
    def prepared(self) -> PreparedData | None:
        """The training data, once all of it is there."""
        return self._train

    def check(self) -> None:
        """Raise what the preparation failed with, if it did."""
        if self._error is not None:
            raise self._error

    def total_steps(self) -> int | None:
        """Optimizer steps of the run; None while rows are still being counted."""
        train = self._job.train
        if train.epochs is None:
            return train.max_steps
        if self._train is None:
            return None
        steps = open_dataset(self._store, self._train.prefix).total_steps(train.epochs, train.global_batch)
        return steps if train.max_steps is None else min(steps, train.max_steps)

    def cancel(self) -> None:
        """Begin nothing more."""
        for part in self._parts:
            part.cancel()

    def _run(self) -> None:
        try:
            self._prepare()
        except BaseException as error:
            self._error = error

    def _prepare(self) -> None:
        plans = {"train": plan_preparation(self._job, self._root, self._store, self._config, split="train")}
        if self._job.data.eval:
            plans["eval"] = plan_preparation(self._job, self._root, self._store, self._config, split="eval")
        for note in dict.fromkeys(note for plan in plans.values() for note in plan.notes):
            self._on_note(note)
        self._session.up()
        # Held-out data first: the loss before the first step needs all of it. Its workers, warm by then, go on with the
        # training data; together they would each import everything in twice as many processes.
        for split in sorted(plans):
            if self._parts:
                self._parts[0].wait(HELD_OUT_FIRST_S)
            progress = self._count if split == "train" else None
            self._parts.append(Preparation(plans[split], self._store, ray=True, progress=progress))
        self._places = DataPlaces(plans["train"].prefix, plans["eval"].prefix if "eval" in plans else None)
        for part, split in zip(self._parts, sorted(plans), strict=True):
            result = part.wait()
            for text in result.outcome if result else ():
                self._on_note(f"{split} data: {text}")
            if split == "train":
                self._train = result

    def _count(self, done: int, of: int, rows: int, tokens: int) -> None:
        self._counts = (done, of, rows, tokens)
