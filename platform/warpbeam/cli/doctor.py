"""`warpbeam doctor`: why a launch failed or hangs, whose it is to mend, and how."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warpbeam.cli.options import Json, Pool, Store, Team, open_runs
from warpbeam.cli.output import print_json, print_table, say, warn
from warpbeam.errors import UnknownFate, UserError

if TYPE_CHECKING:
    from warpbeam.doctor.collect import Collected
    from warpbeam.doctor.diagnose import Answer

CAUSE_FOUND = 1
WIDTH = 10


def doctor(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run, from its record. With --explain: a rule's name.")
    ] = None,
    logs: Annotated[Path | None, typer.Option("--logs", metavar="DIR", help="Any folder of logs.")] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="FILE", help="A .tar or .tar.gz of logs; nothing is unpacked.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="What a rule means; without a name: all rules.")] = False,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Name the first cause of a failure: what, where, whose, and what to do.

    Exit code 0: healthy; 1: a cause was found; 4: something is wrong and the cause is not known.
    """
    if explain:
        _explain(run, json)
        return
    if sum(given is not None for given in (run, logs, bundle)) != 1:
        raise UserError(
            "doctor looks at one thing at a time",
            fix="one of: warpbeam doctor RUN | --logs DIR | --bundle FILE",
            reason="bad_arguments",
        )
    answer = _of_run(run, team, pool, store, json) if run is not None else _of_files(logs, bundle, json)
    if answer.first is not None:
        raise typer.Exit(CAUSE_FOUND)
    if answer.trouble:
        raise typer.Exit(UnknownFate.exit_code)


def _of_files(logs: Path | None, bundle: Path | None, json: bool) -> Answer:
    from warpbeam.doctor.bundle import bundle_items
    from warpbeam.doctor.collect import collect, folder_items
    from warpbeam.doctor.diagnose import diagnose

    left_out: list[str] = []
    if logs is not None:
        items, where = folder_items(logs, left_out), str(logs)
    else:
        assert bundle is not None
        items, where = bundle_items(bundle, left_out), str(bundle)
    read = collect(items, left_out)
    return _show(read, diagnose(read.facts), where, json)


def _of_run(run: str, team: str | None, pool: str | None, store: str | None, json: bool) -> Answer:
    from warpbeam.doctor.diagnose import HEALTHY
    from warpbeam.doctor.from_record import examine, look_at_running
    from warpbeam.record.states import RunState
    from warpbeam.record.view import find_run

    view = find_run(open_runs(pool, store), run, team)
    read, answer = examine(view)
    state = view.state()[0]
    if state is RunState.RUNNING:
        answer = look_at_running(view)  # an odd line alone is no trouble then
    return _show(read, HEALTHY if state is RunState.DONE else answer, f"run {run}", json)


def _show(read: Collected, answer: Answer, where: str, json: bool) -> Answer:
    from warpbeam.doctor.words import lines, to_json

    left_out = read.left_out
    if not read.files:
        raise UserError(
            f"there is nothing to read in {where}",
            why="; ".join(left_out[:3]),
            fix="logs are text files, of any name; give the folder or tar that holds them",
            reason="no_logs",
        )
    if json:
        print_json(to_json(answer, read))
        return answer
    for label, text in lines(answer, read, where):
        say(f"{label:<{WIDTH}}{text}")
    if left_out:
        warn(f"{len(left_out)} not read: {'; '.join(left_out[:3])}{'; ...' if len(left_out) > 3 else ''}")
    return answer


def _explain(name: str | None, json: bool) -> None:
    from warpbeam.doctor.rules import RULES
    from warpbeam.doctor.words import explain

    if name is None:
        rows = [(rule.name, rule.kind, rule.owner, dict(explain(rule))["cause"]) for rule in RULES]
        if json:
            print_json([dict(zip(("rule", "kind", "owner", "cause"), row, strict=True)) for row in rows])
        else:
            print_table(("rule", "kind", "owner", "cause"), rows)
        return
    found = next((rule for rule in RULES if rule.name == name), None)
    if found is None:
        raise UserError(f"there is no rule {name!r}", fix="warpbeam doctor --explain lists them", reason="no_such_rule")
    if json:
        print_json(dict(explain(found)))
        return
    for label, text in explain(found):
        say(f"{label:<{WIDTH}}{text}")
