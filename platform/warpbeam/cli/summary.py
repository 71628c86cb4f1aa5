"""What `warpbeam run` prints at the end: how it went, where the time went, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warpbeam.cli.output import duration, out, say, size
from warpbeam.record.view import HELD_OUT, LOSS, MFU, SPEED

if TYPE_CHECKING:
    from warpbeam.checkpoint.verify import CheckpointRow
    from warpbeam.launch.driver import Fate


def summary_lines(
    run: str, fate: Fate, rows: list[dict[str, Any]], checkpoints: list[CheckpointRow]
) -> list[tuple[str, str]]:
    """(word, text) pairs. `rows`: metric rows of the run's attempts, oldest first."""
    lines = [("run", f"{run}: {fate.state}" + (f" ({fate.reason})" if fate.reason else ""))]
    total = f" of {fate.total_steps}" if fate.total_steps is not None else ""
    lines.append(("steps", f"{fate.step}{total} in {duration(fate.wall_s)}"))
    speeds = sorted(float(row[SPEED]) for row in rows if row.get(SPEED))
    if speeds:
        lines.append(("tokens/s", f"{speeds[len(speeds) // 2]:,.0f} (median)"))
    flops = [float(row[MFU]) for row in rows if row.get(MFU)]
    if flops:
        lines.append(("MFU", f"{sorted(flops)[len(flops) // 2]:.1f} %"))
    losses = [float(row[LOSS]) for row in rows if row.get(LOSS) is not None]
    if losses:
        lines.append(("loss", f"{losses[0]:.4f} -> {losses[-1]:.4f}"))
    held_out = [float(row[HELD_OUT]) for row in rows if row.get(HELD_OUT) is not None]
    if held_out:
        lines.append(("held-out", f"{held_out[0]:.4f} -> {held_out[-1]:.4f}"))
    if checkpoints:
        kept = ", ".join(str(row.step) for row in checkpoints)
        lines.append(("checkpoints", f"steps {kept}; {size(checkpoints[-1].size)} each"))
    lines.append(("time", time_line(fate.buckets)))
    return lines


def time_line(buckets: dict[str, float]) -> str:
    """`start 12s (20%), compute 45s (70%), ...`, largest first; what is under 1% is left out."""
    wall_s = sum(buckets.values()) or 1.0
    spent = sorted(buckets.items(), key=lambda item: -item[1])
    shown = [(name, seconds) for name, seconds in spent if seconds >= 0.01 * wall_s]
    return ", ".join(f"{name.replace('_', ' ')} {duration(s)} ({s / wall_s:.0%})" for name, s in shown)


def next_commands(run: str, fate: Fate, again: str, where: str = "") -> list[str]:
    """Three commands that make sense now.

    Args:
        again: the command that goes on with the run.
        where: options without which the others would look in another store.
    """
    if fate.state.value == "done":
        return [f"warpbeam export {run}{where}", f"warpbeam deploy {run}{where}", f"warpbeam chat {run}"]
    then = "goes on from the newest checkpoint" if fate.committed_step else "begins anew: nothing was saved yet"
    mended = "mend the cause first; " if fate.state.value == "failed" and fate.owner == "ml" else ""
    return [
        f"{again}    # {mended}{then}",
        f"warpbeam logs {run}{where}",
        f"warpbeam status {run}{where}",
    ]


def print_summary(lines: list[tuple[str, str]], commands: list[str]) -> None:
    """For people, to stdout."""
    say("")
    for name, value in lines:
        say(f"  {name:<12}{value}")
    say("")
    for command in commands:
        say(f"  $ {command}")
    out.file.flush()
