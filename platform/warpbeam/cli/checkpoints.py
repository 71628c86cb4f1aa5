"""`warpbeam checkpoints RUN`: what a run can resume from, and what can be exported."""

from __future__ import annotations

from warpbeam.cli.options import Json, Pool, RunName, Store, Team, open_runs
from warpbeam.cli.output import print_json, print_table, say, size


def checkpoints(run: RunName, team: Team = None, pool: Pool = None, store: Store = None, json: Json = False) -> None:
    """List a run's committed checkpoints."""
    from warpbeam.checkpoint.verify import list_checkpoints
    from warpbeam.record.view import find_run

    view = find_run(open_runs(pool, store), run, team)
    rows = list_checkpoints(view.store, view.team, view.run)
    if json:
        print_json([row.to_dict() for row in rows])
    elif not rows:
        say(f"{view.run} has no checkpoint yet")
    else:
        marks = (
            (row, " ".join(word for word, is_so in (("newest", row.newest), ("best", row.best)) if is_so))
            for row in rows
        )
        lines = [
            (row.step, size(row.size), "" if row.eval_loss is None else f"{row.eval_loss:.4f}", row.at, mark)
            for row, mark in marks
        ]
        print_table(("STEP", "SIZE", "HELD-OUT LOSS", "AT", ""), lines, right=("STEP", "SIZE", "HELD-OUT LOSS"))
