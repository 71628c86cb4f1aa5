"""`warpbeam run JOB.yaml`: plan, print, then train here; the same command again goes on where it ended."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warpbeam.cli.options import Accelerators, Force, JobFile, Json, Pool, place_options
from warpbeam.cli.output import note, print_json, say, warn
from warpbeam.cli.plan_text import show_plan
from warpbeam.errors import RunFailed, UnknownFate, WarpbeamError

if TYPE_CHECKING:
    from warpbeam.launch.begin import Opened, Request
    from warpbeam.launch.driver import Fate

Fresh = Annotated[bool, typer.Option("--fresh", help="Train anew under the next free name (NAME-2).")]
Allow = Annotated[
    list[str] | None, typer.Option("--allow", metavar="KEY", help="Go on although this key has changed: train.lr")
]


def run(
    job: JobFile,
    pool: Pool = None,
    accelerators: Accelerators = None,
    fresh: Fresh = False,
    allow: Allow = None,
    force: Force = False,
    name: Annotated[
        str | None, typer.Option("--name", metavar="RUN", help="Train under this name instead of the job's.")
    ] = None,
    start_timeout: Annotated[
        float, typer.Option("--start-timeout", metavar="SECONDS", help="How long ranks may wait for accelerators.")
    ] = 600.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan and what the name means.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask anything.")] = False,
    json: Json = False,
) -> None:
    """Train a job on this machine, or in the Ray cluster that this command runs in.

    Interrupted or killed: the same command goes on from the newest checkpoint. Finished: it says so and exits with 0.
    Ctrl-C stops after the current step with a checkpoint (exit 1, state stopped); a second one ends it at once.
    """
    from warpbeam.job import load_job
    from warpbeam.launch.begin import Request
    from warpbeam.pool import load_pool
    from warpbeam.spec_file import placing

    loaded = load_job(job) if name is None else load_job(job).renamed(name)
    request = Request(loaded, load_pool(pool), accelerators, fresh, frozenset(allow or ()))
    again = f"warpbeam run {job}{f' --name {name}' if name else ''}{place_options(pool)}"
    with placing(job), saying_interrupted(again):
        carry_out(
            request,
            again,
            start_timeout_s=start_timeout,
            dry_run=dry_run,
            yes=yes,
            json=json,
            force=force,
            pool=pool,
        )


def carry_out(
    request: Request,
    again: str,
    *,
    start_timeout_s: float,
    dry_run: bool,
    yes: bool,
    json: bool,
    force: bool = False,
    pool: str | None,
) -> None:
    """The part that `run` and `resume` share. Ends by raising the exit code.

    Args:
        again: the command that goes on with the run.
        pool: as the command line named it; the next commands name it too.
    """
    from warpbeam.environment.lint import runs_here
    from warpbeam.launch.begin import check_sources, open_run, plan_request, refuse_what_cannot_run
    from warpbeam.launch.own_code import check_own_code
    from warpbeam.launch.same_name import Begin, Finished

    planned = plan_request(request, on_doubt=warn)
    if not json:
        show_plan(planned.plan)
    refuse_what_cannot_run(planned, force=force, here=runs_here(request.pool.pool), on_doubt=warn)
    threading.Thread(target=_import_ray, daemon=True).start()
    opened = open_run(planned, fresh=request.fresh, allowed=request.allowed)
    if isinstance(opened.decision, Finished):
        say_finished(opened, json)
        return
    if opened.planned.job.name != planned.job.name:
        note(f"--fresh: it trains under the name {opened.planned.job.name!r}")
    say_decision(opened)
    if dry_run:
        check_own_code(planned.job, planned.root)
        return
    if isinstance(opened.decision, Begin):
        check_sources(planned)
    _confirm(opened, yes)
    fate = _drive(opened, start_timeout_s)
    where = place_options(pool, opened.planned.job.checkpoint.store)
    if json:
        print_json(fate.to_dict() | {"run": opened.planned.job.name, "team": opened.planned.job.team})
    elif fate.step > 0 or fate.ending is None:
        _show_end(opened, fate, again, where)
    _raise_fate(opened, fate, where, json)


@contextlib.contextmanager
def saying_interrupted(again: str) -> Iterator[None]:
    """Ctrl-C before the driver sees to it: nothing was begun, and that is said."""
    try:
        yield
    except KeyboardInterrupt:
        raise RunFailed(
            "interrupted before training began", why="nothing was lost", fix=again, reason="interrupted"
        ) from None


def _import_ray() -> None:
    """Half a second that fits into the wait for the store; whether Ray is missing is told later."""
    with contextlib.suppress(ImportError):
        importlib.import_module("ray")


def _confirm(opened: Opened, yes: bool) -> None:
    """Ask before money is spent, where somebody is there to answer."""
    price = opened.planned.pool.pool.price_per_accelerator_hour
    if yes or not price or not sys.stdin.isatty():
        return
    typer.confirm(f"start at {price * opened.planned.plan.world_size:.2f} an hour?", abort=True)


def _drive(opened: Opened, start_timeout_s: float) -> Fate:
    from warpbeam.cli.progress import TerminalReporter
    from warpbeam.launch.driver import Driver

    with TerminalReporter() as reporter:
        return Driver(opened, reporter, process_began_at(), start_timeout_s).run()


def process_began_at() -> float:
    """When this command was started, by the wall clock: its imports count too."""
    import psutil

    return psutil.Process(os.getpid()).create_time()


def say_finished(opened: Opened, json: bool) -> None:
    """There is nothing to do."""
    from warpbeam.launch.same_data import changed_files

    planned, run = opened.planned, opened.planned.job.name
    if json:
        print_json({"run": run, "team": opened.planned.job.team, "state": "done", "reason": "already_finished"})
        return
    say(f"run {run!r} is finished already, with this very job: nothing to do")
    if files := changed_files(opened.view, planned.job, planned.root, planned.storage):
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        warn(f"its training data has changed since: {', '.join(files[:3])}{more}; --fresh trains on it as it is now")
    say(f"  `warpbeam status {run}` shows it, `warpbeam export {run}` exports it, --fresh trains it anew")


def say_decision(opened: Opened) -> None:
    """Where an unfinished run goes on, and what differs."""
    from warpbeam.launch.same_name import GoOn, describe

    if not isinstance(opened.decision, GoOn):
        return
    commit = opened.view.log.newest_commit()
    at = f"at step {commit.step}" if commit else "from the beginning (no checkpoint was committed)"
    note(f"run {opened.planned.job.name!r} exists and is unfinished: it goes on {at}")
    for change in describe(opened.decision.changes):
        note(f"  changed since: {change}")


def _show_end(opened: Opened, fate: Fate, again: str, where: str) -> None:
    from warpbeam.checkpoint.verify import list_checkpoints
    from warpbeam.cli.summary import next_commands, print_summary, summary_lines

    view = opened.view
    lines = summary_lines(view.run, fate, view.all_metrics(), list_checkpoints(view.store, view.team, view.run))
    print_summary(lines, next_commands(view.run, fate, again, where))


def _raise_fate(opened: Opened, fate: Fate, where: str, json: bool) -> None:
    from warpbeam.cli.failure_words import failure_error
    from warpbeam.record.states import RunState

    if fate.state is RunState.DONE:
        return
    if fate.state is RunState.STOPPED:
        raise typer.Exit(1)
    error: WarpbeamError = failure_error(opened.planned.job.name, fate, Path.cwd(), where)
    if json and not isinstance(error, UnknownFate):
        raise typer.Exit(error.exit_code)  # the fate was printed as JSON already
    raise error
