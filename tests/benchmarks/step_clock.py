"""Writes when each optimizer step of rank 0 ended, for whoever measures from outside (`code.callbacks`)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

VARIABLE = "WARPBEAM_BENCH_STEPS"
"""Names the file: one JSON line a step. `at` is the machine's monotonic clock, the same for all its processes."""


class StepClock:
    """A callback."""

    def __init__(self) -> None:
        self._file = open(os.environ[VARIABLE], "a", buffering=1)  # noqa: SIM115  (lives as long as the run)

    def on_step(self, ctx: Any, row: Mapping[str, Any]) -> None:
        if ctx.rank == 0:
            now = {"at": time.monotonic(), "wall": time.time(), "pid": os.getpid()}
            self._file.write(json.dumps({"step": row["step"], "loss_tokens": row["loss_tokens"], **now}) + "\n")
