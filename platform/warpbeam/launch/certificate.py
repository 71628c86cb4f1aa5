"""Whether a run that was killed and resized is the run it would have been: its rows beside an undisturbed one's. Pure.

The samples of every step must be the same whatever happened. Loss and gradient norm must be equal bit for bit as long
as only the number of ranks of the undisturbed run was used; from the first step on another number they differ by the
order of sums, and must stay within the tolerances stated here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

SCHEMA: Final = "warpbeam/certificate/v1"
LOSS, NORM, SAMPLES = "loss_metrics/global_avg_loss", "grad_norm", "batch_crc"
TOLERANCES: Final = {LOSS: 1e-3, NORM: 1e-2}  # relative, after a step on another number of ranks

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """The first thing that is not as it should be."""

    step: int
    what: str
    undisturbed: float | int | None
    disturbed: float | int | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the comparison says.

    Attributes:
        bitwise_to: the last step up to which equality was asked bit for bit.
        compared: rows of the disturbed run, repeated steps included.
        missing: steps whose row was lost with a process; they are covered by the state that followed from them.
    """

    steps: int
    bitwise_to: int
    compared: int
    missing: tuple[int, ...]
    difference: Difference | None

    @property
    def equal(self) -> bool:
        return self.difference is None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"equal": self.equal, "tolerances": TOLERANCES}


def compare(undisturbed: Sequence[Row], disturbed: Iterable[Row], ranks_of: Mapping[str, int], ranks: int) -> Verdict:
    """Hold every row of the disturbed run against the undisturbed one's row of that step.

    Args:
        ranks_of: attempt -> number of ranks.
        ranks: of the undisturbed run.
    """
    expected = {int(row["step"]): row for row in undisturbed if LOSS in row}
    found = sorted((row for row in disturbed if LOSS in row), key=lambda row: int(row["step"]))
    others = [int(row["step"]) for row in found if ranks_of[row["attempt"]] != ranks]
    bitwise_to = min(others, default=max(expected) + 1) - 1
    difference = next(filter(None, (_differs(row, expected, bitwise_to) for row in found)), None)
    seen = {int(row["step"]) for row in found}
    if difference is None and max(expected) not in seen:
        difference = Difference(max(expected), "the last step has no row", None, None)
    return Verdict(
        steps=len(expected),
        bitwise_to=bitwise_to,
        compared=len(found),
        missing=tuple(sorted(set(expected) - seen)),
        difference=difference,
    )


def _differs(row: Row, expected: Mapping[int, Row], bitwise_to: int) -> Difference | None:
    step = int(row["step"])
    wanted = expected.get(step)
    if wanted is None:
        return Difference(step, "a step that the undisturbed run did not take", None, row[LOSS])
    if row.get(SAMPLES) != wanted.get(SAMPLES):
        return Difference(step, "other samples", wanted.get(SAMPLES), row.get(SAMPLES))
    for name, tolerance in TOLERANCES.items():
        if name not in wanted and name not in row:
            continue
        ours, theirs = wanted.get(name), row.get(name)
        exact = step <= bitwise_to
        if ours is None or theirs is None or not (ours == theirs if exact else _close(ours, theirs, tolerance)):
            return Difference(step, name if exact else f"{name} beyond {tolerance:g}", ours, theirs)
    return None


def _close(one: float, other: float, tolerance: float) -> bool:
    return math.isclose(one, other, rel_tol=tolerance)
