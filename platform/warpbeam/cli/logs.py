"""`warpbeam logs RUN [-f]`: what the ranks printed, from the record: also while the cluster is away, or long gone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from warpbeam.cli.options import Pool, RunName, Store, Team, open_runs
from warpbeam.cli.output import warn


def logs(
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", metavar="N", help="Only this rank.")] = None,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
) -> None:
    """Print a run's logs.

    Following survives a store that is away for a while: no line is lost or repeated.
    """
    from warpbeam.record.follow import follow_logs
    from warpbeam.record.view import find_run

    view = find_run(open_runs(pool, store), run, team)
    speaking = ("", "")
    for piece in follow_logs(view, rank=rank, follow=follow, on_trouble=warn):
        if (piece.attempt, piece.who) != speaking:
            speaking = (piece.attempt, piece.who)
            sys.stdout.write(f"--- {piece.who}, attempt {piece.attempt}\n")
            sys.stdout.flush()
        sys.stdout.buffer.write(piece.data)
        sys.stdout.buffer.flush()
