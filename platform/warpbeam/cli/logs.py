"""`warpbeam logs RUN [-f]`: what the ranks printed, from the record: also while the cluster is away, or long gone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from warpbeam.cli.options import Context, Pool, RunName, Store, Team, open_runs
from warpbeam.cli.output import note, warn
from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.record.states import RunState
    from warpbeam.record.view import RunView

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def logs(
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="10m", help="Only what was written in the last 10m (s, m, h, d).")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", metavar="N", help="Only this rank.")] = None,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
    context: Context = None,
) -> None:
    """Print a run's logs.

    Following survives a store that is away for a while: no line is lost or repeated. --since counts by pieces of the
    record, which hold up to 64 kB: some lines may be older.
    """
    from warpbeam.record.follow import follow_logs
    from warpbeam.record.view import find_run

    since_s = None if since is None else seconds(since)
    view = find_run(open_runs(pool, store), run, team)
    speaking = ("", "")
    for piece in follow_logs(
        view, rank=rank, follow=follow, since_s=since_s, state_of=_state_of(view, follow, context), on_trouble=warn
    ):
        if (piece.attempt, piece.who) != speaking:
            speaking = (piece.attempt, piece.who)
            sys.stdout.write(f"--- {piece.who}, attempt {piece.attempt}\n")
            sys.stdout.flush()
        sys.stdout.buffer.write(piece.data)
        sys.stdout.buffer.flush()


def _state_of(view: RunView, follow: bool, context: str | None) -> Callable[[], tuple[RunState, str]] | None:
    """A run that a cluster will begin, or begin again, has not ended: following asks there too."""
    from warpbeam.launch.standing import Follower

    return Follower(view, context, on_sentence=note).state if follow else None


def seconds(words: str) -> float:
    """`90`, `90s`, `10m`, `2h` or `1d` in seconds. Raises UserError."""
    number, unit = (words[:-1], words[-1]) if words[-1:] in _UNITS else (words, "s")
    try:
        value = float(number) * _UNITS[unit]
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UserError(
            f"--since {words} is no time", fix="write `--since 90s`, `10m`, `2h` or `1d`", reason="bad_input"
        )
    return value
