"""How a job scales: the same global batch on more and more accelerators, and what takes the rest of the speed-up.

Efficiency is speed-up over the number of accelerators, both against the smallest size. What limits a size is the part
of the step whose cost (accelerator-seconds a token) grew most since the smallest one; where it is more than 100%, the
part that shrank most is what the smallest size lacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from warpbeam.plan.forecast import Forecast
from warpbeam.plan.report import described
from warpbeam.plan.words import seconds

BAR: Final = 40
GROUPS: Final = {
    "compute": "less work for each: smaller products",
    "recompute": "activations recomputed",
    "tensor_communication": "tensor-parallel communication",
    "context_communication": "context-parallel communication",
    "expert_communication": "expert-parallel communication",
    "pipeline_communication": "pipeline communication",
    "data_communication": "exposed communication",
    "bubble": "pipeline bubble",
    "optimizer": "the optimizer's step",
    "offload": "offload traffic",
    "overhead": "stragglers and fixed work of a step",
    "data_wait": "waiting for data",
}
SHRUNK: Final = {
    "compute": "larger micro-batches or fewer splits",
    "recompute": "less recomputing",
    "bubble": "a smaller pipeline bubble",
    "optimizer": "less of the optimizer for each",
    "offload": "less offload traffic",
}
BEYOND: Final = 1.01  # efficiency from which it needs an explanation
SHARED_CORES: Final = "ranks share the pool's cores: fewer for each"
PADDING: Final = "padding: the batch does not divide"
NOTHING: Final = "-"


@dataclass(frozen=True, kw_only=True)
class Size:
    """One line of a scaling table. None where no layout is legal there.

    Attributes:
        tokens_per_s: without padding.
        speed_up, efficiency: against the smallest size.
        limit: what takes most of what is missing.
    """

    accelerators: int
    found: Forecast | None
    tokens_per_s: float | None
    speed_up: float | None
    efficiency: float | None
    limit: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self) | {"found": self.found.to_dict() if self.found else None}


def scaling(
    sizes: Sequence[int], tokens: int, at: Callable[[int], Forecast | None], *, cores_shared: bool = False
) -> list[Size]:
    """The table for `sizes` (sorted here).

    Args:
        tokens: of an optimizer step, padding left out.
        at: the prediction for a number of accelerators.
        cores_shared: ranks of a CPU pool: more of them have fewer cores each (plan/machine.py).
    """
    groups = GROUPS | {"compute": SHARED_CORES, "recompute": SHARED_CORES} if cores_shared else GROUPS
    rows: list[Size] = []
    base: tuple[int, Forecast] | None = None
    for count in sorted(set(sizes)):
        found = at(count)
        if found is None:
            rows.append(_row(count, None, None, None, None, "no legal layout of this batch"))
            continue
        base = base or (count, found)
        if found.fits and not base[1].fits:  # what does not fit is nothing to compare with
            base, rows = (count, found), [_unmeasured(row) for row in rows]
        speed, first = tokens / found.step_s, tokens / base[1].step_s
        gained = speed / first
        rows.append(
            _row(count, found, speed, gained, gained * base[0] / count, _limit(groups, tokens, base, (count, found)))
        )
    return rows


def _row(
    count: int, found: Forecast | None, speed: float | None, gained: float | None, share: float | None, limit: str
) -> Size:
    return Size(accelerators=count, found=found, tokens_per_s=speed, speed_up=gained, efficiency=share, limit=limit)


def _unmeasured(row: Size) -> Size:
    why = row.limit if row.found is None else "no promise holds" if row.found.likely else "does not fit"
    return replace(row, speed_up=None, efficiency=None, limit=why)


def _limit(groups: Mapping[str, str], tokens: int, base: tuple[int, Forecast], now: tuple[int, Forecast]) -> str:
    """The part that grew most, of what a token costs; padding is a part of its own."""
    if base[1] is now[1]:
        return NOTHING
    useful = tokens / now[1].tokens  # below 1 where rows of zero weight fill the batch
    grew: dict[str, float] = {}
    for part, spent in now[1].time_parts.items():
        more = now[0] * spent * useful - base[0] * base[1].time_parts.get(part, 0.0)
        grew[groups[part]] = grew.get(groups[part], 0.0) + more
    grew[PADDING] = now[0] * now[1].step_s * (1 - useful)
    name = max(grew, key=lambda part: grew[part])
    cost, first = now[0] * now[1].step_s, base[0] * base[1].step_s
    if first > BEYOND * cost:
        return _beyond(base, now, useful, first)
    return f"{name} ({grew[name] / cost:.0%})" if grew[name] > 0.01 * cost else NOTHING


def _beyond(base: tuple[int, Forecast], now: tuple[int, Forecast], useful: float, first: float) -> str:
    """More than linear: what the smallest size lacked, most often memory for a faster setup."""
    saved = {
        name: base[0] * seconds - now[0] * now[1].time_parts.get(name, 0.0) * useful
        for name, seconds in base[1].time_parts.items()
    }
    name = max(saved, key=lambda part: saved[part])
    words = SHRUNK.get(name, f"less {GROUPS[name]}")
    why = "" if described(base[1]) == described(now[1]) else f", as there is more memory than at {base[0]}"
    return f"more than linear: {words} ({saved[name] / first:.0%}){why}"


def table(rows: Sequence[Size]) -> list[str]:
    """The table as text."""
    head = ("ACCELERATORS", "STEP", "TOKENS/S", "SPEED-UP", "EFFICIENCY", "FITS", "STRATEGY", "LIMIT")
    cells = [head]
    for row in rows:
        now = row.found
        if now is None:
            cells.append((str(row.accelerators), "-", "-", "-", "-", "-", "-", row.limit))
            continue
        gained = "-" if row.speed_up is None else f"{row.speed_up:.2f}x"
        share = "-" if row.efficiency is None else f"{row.efficiency:.0%}"
        fits = "yes" if now.fits else "likely" if now.likely else "no"
        speed = f"{row.tokens_per_s:,.0f}"
        cells.append(
            (str(row.accelerators), seconds(now.step_s), speed, gained, share, fits, described(now), row.limit)
        )
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    lines = []
    for line in cells:
        numbers = [cell.rjust(width) for cell, width in zip(line[:5], widths[:5], strict=True)]
        words = [cell.ljust(width) for cell, width in zip(line[5:], widths[5:], strict=True)]
        lines.append("  ".join([*numbers, *words]).rstrip())
    return lines


def bars(rows: Sequence[Size]) -> list[str]:
    """The plot: efficiency of each size as a bar of up to `BAR` characters, for a terminal."""
    width = max(len(str(row.accelerators)) for row in rows)
    lines = []
    for row in rows:
        if row.efficiency is None:
            lines.append(f"{row.accelerators:>{width}} |")
            continue
        filled = round(min(1.0, row.efficiency) * BAR)
        lines.append(f"{row.accelerators:>{width}} |{'#' * filled}{'.' * (BAR - filled)}| {row.efficiency:.0%}")
    return lines
