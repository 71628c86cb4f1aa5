"""`warpbeam`: registers the verbs and catches every error once. Nothing else happens here."""

from __future__ import annotations

import sys

import typer
from typer.exceptions import Abort, TyperException

from warpbeam.cli import (
    calibrate,
    certify,
    chat,
    checkpoints,
    data,
    deploy,
    doctor,
    down,
    errors,
    export,
    gate,
    init,
    lint_env,
    list_runs,
    logs,
    models,
    plan,
    preflight,
    render,
    resume,
    run,
    serve,
    status,
    stop,
    submit,
    verify,
    version,
    wait,
)
from warpbeam.errors import UserError, WarpbeamError

INTERRUPTED = 130
"""How typer ends on Ctrl-C, as shells count it; a run that was stopped ends with 1."""
app = typer.Typer(
    name="warpbeam",
    help="Plan, train, watch and serve models: on this machine, or on a Ray cluster.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

TRAIN, LOOK, WATCH, MODEL, MACHINE = "Train", "Look before", "Watch", "Use the model", "This machine"
CLUSTER = "For platform teams"

app.command("run", rich_help_panel=TRAIN)(run.run)
app.command("submit", rich_help_panel=TRAIN)(submit.submit)
app.command("resume", rich_help_panel=TRAIN)(resume.resume)
app.command("stop", rich_help_panel=TRAIN)(stop.stop)

app.command("plan", rich_help_panel=LOOK)(plan.plan)
app.command("lint-env", rich_help_panel=LOOK)(lint_env.lint_env)
app.command("preflight", rich_help_panel=LOOK)(preflight.preflight)
app.command("render", rich_help_panel=LOOK)(render.render)
app.command("calibrate", rich_help_panel=LOOK)(calibrate.calibrate)
app.command("certify", rich_help_panel=LOOK)(certify.certify)
app.command("init", rich_help_panel=LOOK)(init.init)
app.add_typer(data.app, name="data", rich_help_panel=LOOK)
app.command("version", rich_help_panel=LOOK)(version.version)

app.command("list", rich_help_panel=WATCH)(list_runs.list_runs)
app.command("status", rich_help_panel=WATCH)(status.status)
app.command("logs", rich_help_panel=WATCH)(logs.logs)
app.command("wait", rich_help_panel=WATCH)(wait.wait)
app.command("doctor", rich_help_panel=WATCH)(doctor.doctor)
app.command("checkpoints", rich_help_panel=WATCH)(checkpoints.checkpoints)
app.command("verify", rich_help_panel=WATCH)(verify.verify)

app.command("export", rich_help_panel=MODEL)(export.export)
app.command("models", rich_help_panel=MODEL)(models.models)
app.command("deploy", rich_help_panel=MODEL)(deploy.deploy)
app.command("serve", rich_help_panel=MODEL)(serve.serve)
app.command("chat", rich_help_panel=MODEL)(chat.chat)

app.command("down", rich_help_panel=MACHINE)(down.down)

app.command("gate", rich_help_panel=CLUSTER)(gate.gate)


def main() -> None:
    """Entry point of the `warpbeam` command."""
    as_json = "--json" in sys.argv[1:]
    try:
        _ask_for_json() if as_json else app()
    except WarpbeamError as error:
        sys.exit(errors.report(error, as_json=as_json))
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            errors.say_interrupted()
        if unwritten := errors.flush_output():
            sys.exit(unwritten)
        raise
    except Exception as error:
        unwritten = errors.flush_output(more="\n") if isinstance(error, OSError) else None
        sys.exit(unwritten or errors.report_crash(error, as_json=as_json))


def _ask_for_json() -> None:
    """Run the command; a wrong option is an error like any other, which a script reads where it reads the result."""
    try:
        sys.exit(app(standalone_mode=False))
    except TyperException as error:
        context = getattr(error, "ctx", None)  # of errors in the use of one command
        raise UserError(
            error.format_message(),
            fix=f"`{context.command_path if context else 'warpbeam'} --help` lists what there is",
            reason="bad_arguments",
        ) from error
    except Abort:  # nobody to answer a question
        sys.exit(1)


if __name__ == "__main__":
    main()
