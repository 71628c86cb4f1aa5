"""`warpbeam wait RUN`: returns when the run has ended; the exit code is its fate."""

from __future__ import annotations

import typer

from warpbeam.cli.options import Context, Json, Pool, RunName, Store, Team, open_runs
from warpbeam.cli.output import note, print_json, say, warn


def wait(
    run: RunName,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
    context: Context = None,
    json: Json = False,
) -> None:
    """Wait for a run's end; the exit code is its fate.

    0 done; 1 stopped, or failed by the job's own doing; 2 failed by its input; 3 failed by the platform or a machine;
    4 not known (its processes vanished, or the record cannot be read).
    """
    from warpbeam.launch.standing import Follower, exit_code
    from warpbeam.record.follow import wait_for_end
    from warpbeam.record.view import find_run

    view = find_run(open_runs(pool, store), run, team)
    follower = Follower(view, context, on_sentence=lambda text: note(f"{run}: {text}"))
    try:
        state, reason = wait_for_end(
            view,
            state_of=follower.state,
            on_trouble=warn,
            on_state=lambda state: None if state.ended else note(f"{run}: {state}"),
        )
    except KeyboardInterrupt:
        note(f"{run} goes on; `warpbeam stop {run}` would end it")
        raise
    if json:
        print_json({"run": view.run, "team": view.team, "state": state, "reason": reason})
    else:
        say(f"{view.run}: {state}" + (f" ({reason})" if reason else ""))
    raise typer.Exit(exit_code(view, follower.found))
