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
    from warpbeam.launch.versions import compare, installed, known_conflicts

    found = installed()
    if not check:
        if json:
            print_json(found)
        else:
            say(f"warpbeam {found['warpbeam']}")
        return
    rows, conflicts = compare(found), known_conflicts(found)
    if json:
        print_json({"packages": [asdict(row) for row in rows], "conflicts": conflicts})
    else:
        cells = [(row.name, row.tested, row.found or "-", row.remark) for row in rows]
        print_table(("PACKAGE", "TESTED", "HERE", ""), cells)
        say("")
        for conflict in conflicts:
            say(f"known not to work: {conflict}")
        if not conflicts:
            say("no combination that is known not to work")
    if conflicts:
        raise typer.Exit(1)
