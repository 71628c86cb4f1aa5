"""`warpbeam stop RUN`: ask a run to end, from anywhere that reaches its store."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from warpbeam.cli.options import Context, Pool, RunName, Store, Team, open_runs
from warpbeam.cli.output import note, say, warn
from warpbeam.errors import UserError, WarpbeamError

if TYPE_CHECKING:
    from warpbeam.record.submission import Submission
    from warpbeam.record.view import RunView


def stop(
    run: RunName,
    now: Annotated[bool, typer.Option("--now", help="Kill its processes on this machine instead of asking.")] = False,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
    context: Context = None,
) -> None:
    """Ask a run to stop after its next step, with a checkpoint.

    The same `warpbeam run` goes on from there.
    """
    from warpbeam.launch import kube_look
    from warpbeam.launch.standing import standing
    from warpbeam.record.desired import write_desired
    from warpbeam.record.stop import request_stop
    from warpbeam.record.view import find_run

    view = find_run(open_runs(pool, store), run, team)
    stands = standing(view, lambda submission: kube_look.ask(submission, context))
    if stands.state.ended:
        say(f"{view.run} does not run: it is {stands.state}")
        return
    if now:
        _end_here(view)
        return
    by = getpass.getuser()
    if stands.submission is not None:
        write_desired(view.store, view.team, view.run, "stopped", by=by)
    if stands.submission is not None and not stands.begun:
        _call_off(view, stands.submission, context)
        return
    request_stop(view, by=by)
    say(f"{view.run} was asked to stop")
    note(f"it writes a checkpoint after its current step: `warpbeam wait {view.run}` waits for that")


def _end_here(view: RunView) -> None:
    from warpbeam.record.stop import kill_here

    killed, elsewhere = kill_here(view)
    if elsewhere:
        raise UserError(
            f"{len(elsewhere)} processes of {view.run} run on other machines: {', '.join(sorted(elsewhere))}",
            fix=f"`warpbeam stop {view.run}` without --now asks them to end; or use --now on those machines",
            reason="not_here",
        )
    say(f"{view.run}: ended {killed} processes; its newest checkpoint stays")


def _call_off(view: RunView, submission: Submission, context: str | None) -> None:
    """A run that no driver has begun has nothing to save: its RayJob goes. Where the cluster cannot be asked, the
    driver will find the wish and end at once."""
    from warpbeam.launch.kube_look import connect
    from warpbeam.record.states import RunState
    from warpbeam.record.submission import SubmissionEnd, write_end

    try:
        connect(submission, context).delete("RayJob", submission.name, submission.namespace, uid=submission.uid)
    except WarpbeamError as error:
        warn(f"{error.what}")
        say(f"{view.run} is to stop: when its pods come up they find that, and end at once")
        return
    write_end(view.store, submission, SubmissionEnd(RunState.STOPPED, "asked", "it had not begun", "ml", 1))
    say(f"{view.run} had not begun: its RayJob {submission.name} is deleted")
