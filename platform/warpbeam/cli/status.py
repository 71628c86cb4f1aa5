"""`warpbeam status RUN`: where one run stands, from its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpbeam.cli.options import Json, Pool, RunName, Store, Team, open_runs
from warpbeam.cli.output import duration, print_json, say

if TYPE_CHECKING:
    from warpbeam.record.view import RunStatus


def status(run: RunName, team: Team = None, pool: Pool = None, store: Store = None, json: Json = False) -> None:
    """Show a run's state, progress and where its time went."""
    from warpbeam.record.view import find_run

    found = find_run(open_runs(pool, store), run, team).status()
    if json:
        print_json(found.to_dict())
        return
    for name, value in _lines(found):
        say(f"{name:<12}{value}")


def _lines(found: RunStatus) -> list[tuple[str, str]]:
    lines = [("run", f"{found.team}/{found.run}")]
    lines.append(("state", f"{found.state}" + (f" ({found.reason})" if found.reason else "")))
    lines.append(("step", f"{found.step} of {found.total_steps if found.total_steps is not None else '?'}"))
    saved = "none" if found.committed_step is None else f"step {found.committed_step}"
    lines.append(("checkpoint", saved))
    if found.attempt:
        lines.append(("attempt", _attempt(found)))
    if not found.state.ended and found.heartbeat_age_s is not None:
        phase = f", in phase {found.phase}" if found.phase else ""
        lines.append(("heartbeat", f"{duration(found.heartbeat_age_s)} ago{phase}"))
    if found.loss is not None:
        lines.append(("loss", f"{found.loss:.4f}"))
    if found.tokens_per_s is not None:
        lines.append(("tokens/s", f"{found.tokens_per_s:,.0f} (median of the newest steps)"))
    if not found.state.ended:
        lines.append(("time left", duration(found.eta_s)))
    spent = {name: seconds for name, seconds in found.buckets.items() if seconds >= 0.05}
    if spent:
        lines.append(("time", ", ".join(f"{name} {duration(seconds)}" for name, seconds in spent.items())))
    return lines


def _attempt(found: RunStatus) -> str:
    return f"{found.attempt} (number {found.attempts}), on {found.host}, since {found.claimed_at}"
