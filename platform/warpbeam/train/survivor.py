"""A rank that is left over when its attempt fails: it saves the state alone, where it holds all of it (ADR 0018).

Only what is exact is saved: the state between two steps, before anything of the next one has changed it, and only in a
loop that draws no random numbers, because those of a dead rank cannot be known. Between the steps this costs two
attributes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from warpbeam.checkpoint.rng import capture_rng
from warpbeam.train.metrics import Sink
from warpbeam.train.saving import Checkpoints
from warpbeam.train.strategies.base import Saved
from warpbeam.train.survival import Stage, say

log = logging.getLogger(__name__)

ROWS_KEPT = 4000  # more than rank 0 can have in hand: it sends them every few seconds
PATIENCE_S = (1.0, 30.0)


class Survivor:
    """Knows at which moments a rank's state is a step's, whole and exact."""

    def __init__(self) -> None:
        self._state: Saved | None = None  # None: this rank does not hold all of it
        self._rows: deque[dict[str, Any]] = deque(maxlen=ROWS_KEPT)
        self._between: tuple[int, int] | None = None  # the step that is over, and the updates until then
        self._random: dict[str, torch.Tensor] = {}
        self._at = 0.0

    def adopt(self, state: Saved) -> None:
        """What the loop trains."""
        self._state = state if state.alone() is not None else None
        say(Stage.UNABLE)

    def begin(self, step: int) -> None:
        """The loop begins after `step`."""
        self._random = capture_rng()
        self.rest(step)

    def keep(self, row: dict[str, Any]) -> None:
        """A row that rank 0 alone has sent to the record, and may have taken with it."""
        self._rows.append(row)

    def leave(self) -> None:
        """A step is being ended: until `rest`, what belongs to it is neither in the state nor in the record whole."""
        self._between = None

    def rest(self, step: int) -> None:
        """`step` is over."""
        if self._state is None:
            return
        now = time.monotonic()
        step_s, self._at = now - self._at, now
        self._between = (step, self._state.updates)
        least_s, most_s = PATIENCE_S
        say(Stage.TRAINING, min(max(2 * step_s, least_s), most_s) if self._notices() else 0.0)

    def save(self, checkpoints: Checkpoints, sink: Sink, train_state: Mapping[str, Any]) -> None:
        """Save after a failure, where it can be done exactly. Never raises: the failure is what matters."""
        saved = None
        if self._state is not None and (step := self._exact_step(self._state)) is not None:
            say(Stage.SAVING)
            try:
                for row in self._rows:
                    sink.metrics(row)
                sink.flush_soon()
                saved = checkpoints.save_alone(self._state, step, train_state)
            except Exception as error:
                log.warning("the state could not be saved after the failure: %s: %s", type(error).__name__, error)
        say(Stage.UNABLE if saved is None else Stage.SAVED)

    def _exact_step(self, state: Saved) -> int | None:
        """The step whose state this rank holds, whole and untouched; None when it holds none."""
        if self._between is None:
            return None
        step, updates = self._between
        now = capture_rng()
        drew = any(not torch.equal(then, now[name]) for name, then in self._random.items())
        return None if drew or updates != state.updates else step

    @staticmethod
    def _notices() -> bool:
        """A collective over NCCL does not end when a rank dies: nobody who waits in one will begin to save."""
        return dist.is_initialized() and dist.get_backend() == "gloo"
