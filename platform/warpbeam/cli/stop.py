"""`warpbeam stop RUN`: ask a run to end, from anywhere that reaches its store."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from warpbeam.cli.options import Pool, RunName, Store, Team, open_runs
from warpbeam.cli.output import note, say
from warpbeam.errors import UserError


def stop(
    run: RunName,
    now: Annotated[bool, typer.Option("--now", help="Kill its processes on this machine instead of asking.")] = False,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
) -> None:
    """Ask a run to stop after its next step, with a checkpoint.

    The same `warpbeam run` goes on from there.
    """
    from warpbeam.record.stop import kill_here, request_stop
    from warpbeam.record.view import find_run

    view = find_run(open_runs(pool, store), run, team)
    state, _ = view.state()
    if state.ended:
        say(f"{view.run} does not run: it is {state}")
        return
    if now:
        killed, elsewhere = kill_here(view)
        if elsewhere:
            raise UserError(
                f"{len(elsewhere)} processes of {view.run} run on other machines: {', '.join(sorted(elsewhere))}",
                fix=f"`warpbeam stop {view.run}` without --now asks them to end; or use --now on those machines",
                reason="not_here",
            )
        say(f"{view.run}: ended {killed} processes; its newest checkpoint stays")
        return
    request_stop(view, by=getpass.getuser())
    say(f"{view.run} was asked to stop")
    note(f"it writes a checkpoint after its current step: `warpbeam wait {view.run}` waits for that")
