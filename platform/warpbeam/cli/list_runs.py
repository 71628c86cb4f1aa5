"""`warpbeam list`: all runs, from key names alone."""

from __future__ import annotations

from warpbeam.cli.options import Json, Pool, Store, Team, open_runs
from warpbeam.cli.output import print_json, print_table, say


def list_runs(team: Team = None, pool: Pool = None, store: Store = None, json: Json = False) -> None:
    """List all runs, newest first."""
    from warpbeam.record.view import list_runs as read

    lines = read(open_runs(pool, store), team)
    if json:
        print_json([line.to_dict() for line in lines])
    elif not lines:
        say("no runs yet: `warpbeam run JOB.yaml` makes one")
    else:
        rows = [(line.run, line.team, line.state, line.step, f"{line.at:%Y-%m-%d %H:%M}Z") for line in lines]
        print_table(("RUN", "TEAM", "STATE", "STEP", "SINCE"), rows, right=("STEP",))
