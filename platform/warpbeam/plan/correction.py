"""What finished runs on a pool taught: how far the plan was off, and the next plan put right by it.

A correction belongs to one pool and accelerator. Memory is corrected in the part that no formula knows exactly: on
GPUs the working memory (activations, logits, buffers) by a factor, on CPUs the size of the process by an addend. Time
is corrected by a factor of the whole step; waiting for data, which no plan predicts, is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from warpbeam.errors import UserError

SCHEMA: Final = "warpbeam/calibration/v1"
LIMITS: Final = (0.05, 20.0)
"""A factor outside says that another thing was measured than planned."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a finished run shows: medians over its steps, and its peak.

    Attributes:
        step_s: an optimizer step from end to end.
        data_wait_s: of it, waiting for data.
        peak_gib: of the rank that held most.
    """

    run: str
    steps: int
    step_s: float
    data_wait_s: float
    peak_gib: float


@dataclass(frozen=True, kw_only=True)
class Correction:
    """To be laid over a prediction on `pool`."""

    pool: str
    accelerator: str
    runs: tuple[str, ...]
    memory_factor: float
    memory_offset_gib: float
    time_factor: float
    data_wait_s: float
    at: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` reads it back."""
        return asdict(self) | {"schema": SCHEMA, "runs": list(self.runs)}

    @classmethod
    def from_dict(cls, value: object) -> Correction:
        """Raises UserError for another format, or one that lacks something."""
        if not isinstance(value, Mapping):
            raise _unreadable("a calibration that is no JSON object")
        if value.get("schema") != SCHEMA:
            raise _unreadable(f"a calibration of schema {value.get('schema')!r}")
        for field in fields(cls):
            if not _is_good(field.name, value.get(field.name)):
                raise _unreadable(f"a calibration whose `{field.name}` is {value.get(field.name)!r}")
        known = {field.name: value[field.name] for field in fields(cls)}
        return cls(**known | {"runs": tuple(value["runs"])})


PLAUSIBLE: Final = {  # what a correction may be: beyond it the file is not one that `calibrate` wrote
    "memory_factor": LIMITS,
    "memory_offset_gib": (-1024.0, 1024.0),
    "time_factor": LIMITS,
    "data_wait_s": (0.0, 86_400.0),
}


def _is_good(name: str, value: object) -> bool:
    if name == "runs":
        return isinstance(value, list) and all(isinstance(run, str) for run in value)
    if name not in PLAUSIBLE:
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    least, most = PLAUSIBLE[name]
    return least <= value <= most


def _unreadable(what: str) -> UserError:
    return UserError(f"{what} cannot be read", fix="measure again: `warpbeam calibrate RUN`", reason="bad_calibration")


def learn(
    measured: Measured,
    *,
    pool: str,
    accelerator: str,
    states_gib: float,
    working_gib: float,
    step_s: float,
    on_cpu: bool,
    at: str,
    older: Correction | None = None,
) -> Correction:
    """The correction that makes an uncorrected prediction equal the measurement.

    Args:
        states_gib: predicted parameters, gradients and optimizer states, which are exact.
        working_gib: predicted rest.
        step_s: predicted.
        older: what earlier runs taught; the newest run weighs half, all before it the other half.

    Raises:
        UserError: prediction and measurement are too far apart to be about the same thing.
    """
    computing_s = max(measured.step_s - measured.data_wait_s, 1e-9)
    time_factor = computing_s / step_s
    over_gib = measured.peak_gib - states_gib - working_gib
    factor = 1.0 if on_cpu else max(measured.peak_gib - states_gib, 0.01 * working_gib) / working_gib
    for what, value in (("step time", time_factor), ("memory", factor)):
        if not LIMITS[0] <= value <= LIMITS[1]:
            raise UserError(
                f"run {measured.run}: measured {what} is {value:.3g} times the plan's",
                why="that is no matter of calibration: another accelerator, or a machine that was busy or throttled",
                fix="check that the run used the pool it names; then calibrate with another run",
                reason="implausible_calibration",
            )
    new = Correction(
        pool=pool,
        accelerator=accelerator,
        runs=(measured.run,),
        memory_factor=factor,
        memory_offset_gib=over_gib if on_cpu else 0.0,
        time_factor=time_factor,
        data_wait_s=measured.data_wait_s,
        at=at,
    )
    return _joined(older, new) if older is not None and older.accelerator == accelerator else new


def _joined(older: Correction, new: Correction) -> Correction:
    """Half and half (factors by their geometric mean); the same run again replaces what it taught alone."""
    if older.runs == new.runs:
        return new
    return Correction(
        pool=new.pool,
        accelerator=new.accelerator,
        runs=(*(run for run in older.runs if run not in new.runs), *new.runs)[-8:],
        memory_factor=math.sqrt(older.memory_factor * new.memory_factor),
        memory_offset_gib=(older.memory_offset_gib + new.memory_offset_gib) / 2,
        time_factor=math.sqrt(older.time_factor * new.time_factor),
        data_wait_s=(older.data_wait_s + new.data_wait_s) / 2,
        at=new.at,
    )
