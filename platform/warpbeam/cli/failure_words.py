"""A failed run as an error for people: what, the last lines of their own code, and the next command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.errors import InfraError, PlatformError, RunFailed, UserError, WarpbeamError
from warpbeam.launch.failure import Cause

if TYPE_CHECKING:
    from warpbeam.launch.driver import Fate

SHOWN_FRAMES = 3


def failure_error(run: str, fate: Fate, here: Path, where: str = "") -> WarpbeamError:
    """The error whose class carries the exit code of this fate.

    Args:
        here: the user's own frames are shown relative to it.
        where: options that `warpbeam logs RUN` needs.
    """
    ending = fate.ending
    if ending is None:
        return RunFailed(f"run {run!r} failed", fix=f"warpbeam logs {run}{where}", reason=fate.reason)
    if ending.error is not None and ending.cause in (
        Cause.BAD_INPUT,
        Cause.PLATFORM,
        Cause.FENCED,
        Cause.INFRA,
        Cause.PREFLIGHT,
        Cause.DISK_FULL,
    ):
        return ending.error
    kinds: dict[str, type[WarpbeamError]] = {"platform": PlatformError, "infra": InfraError, "ml": RunFailed}
    kind = kinds.get(fate.owner, WarpbeamError)
    if kind is UserError:
        kind = RunFailed
    frames = ending.facts.get("frames") or []
    why = own_code_text(frames, ending.facts, here) if frames else _story(fate)
    return kind(ending.what, why=why, fix=_fix(f"{run}{where}", fate), reason=fate.reason)


def own_code_text(frames: list[dict[str, Any]], facts: dict[str, Any], here: Path) -> str:
    """The innermost frames in the user's own files, as Python shows them."""
    lines = []
    for frame in frames[-SHOWN_FRAMES:]:
        path = Path(frame["file"])
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        lines.append(f"{shown}:{frame['line']} in {frame['name']}")
        lines.append(f"    {frame['text'].strip()}")
    lines.append(f"{facts['type']}: {facts['message']}")
    return "\n".join(lines)


def _story(fate: Fate) -> str:
    if fate.reason == "same_failure_twice":
        return "it happened twice at the same step, so another try would end the same way"
    if fate.reason == "too_many_failures":
        return f"{fate.attempts} attempts failed without a new checkpoint between them"
    if fate.reason == Cause.NO_RESOURCES:
        return "all ranks start together or none does; nothing is held while they wait"
    return ""


def _fix(run: str, fate: Fate) -> str:
    if fate.reason == Cause.NO_RESOURCES:
        return "run it again when the cluster is free, with fewer --accelerators, or with a longer --start-timeout"
    saved = f"; its newest checkpoint (step {fate.committed_step}) stays" if fate.committed_step else ""
    return f"`warpbeam logs {run}` has the whole output of every rank{saved}"
