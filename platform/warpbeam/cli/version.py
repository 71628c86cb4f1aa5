"""`warpbeam version`: what is installed; `--check` puts the tested set beside it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from warpbeam.cli.options import Json
from warpbeam.cli.output import print_json, print_table, say


def version(
    check: Annotated[bool, typer.Option("--check", help="Compare with the set that is tested together.")] = False,
    json: Json = False,
) -> None:
    """Print versions; with --check, the tested set beside them.

    Exit code 1 for a combination that is known not to work.
    """
    from warpbeam.versions import check_versions, installed_versions, known_conflicts

    found = installed_versions()
    if not check:
        if json:
            print_json(found)
        else:
            say(f"warpbeam {found['warpbeam']}")
        return
    rows, conflicts = check_versions(found), known_conflicts(found)
    if json:
        print_json({"packages": [asdict(row) for row in rows], "conflicts": conflicts})
    else:
        cells = [(row.name, row.tested, row.installed or "-", row.note) for row in rows]
        print_table(("PACKAGE", "TESTED", "HERE", ""), cells)
        say("")
        for conflict in conflicts:
            say(f"known not to work: {conflict}")
        if not conflicts:
            say("no combination that is known not to work")
    if conflicts:
        raise typer.Exit(1)
