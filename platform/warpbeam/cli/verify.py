"""`warpbeam verify RUN[@STEP]`: read a checkpoint in full and compare every hash with the manifest and the log."""

from __future__ import annotations

from typing import Annotated

import typer

from warpbeam.cli.options import Json, Pool, Store, Team, open_runs
from warpbeam.cli.output import print_json, say, size
from warpbeam.errors import UserError


def verify(
    run: Annotated[str, typer.Argument(metavar="RUN[@STEP]", help="The newest checkpoint without @STEP.")],
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Read a checkpoint in full and check every hash.

    Exit code 1 when it is not whole.
    """
    from warpbeam.checkpoint.verify import verify as check
    from warpbeam.record.view import find_run

    name, step = split_step(run)
    view = find_run(open_runs(pool, store), name, team)
    found = check(view.store, view.team, view.run, step)
    if json:
        print_json({"step": found.step, "files": found.files, "bytes": found.size, "faults": found.faults})
    elif found.ok:
        say(f"step {found.step}: whole ({found.files} files, {size(found.size)}, every hash right)")
    else:
        say(f"step {found.step}: BROKEN")
        for fault in found.faults:
            say(f"  {fault}")
    if not found.ok:
        raise typer.Exit(1)


def split_step(text: str) -> tuple[str, int | None]:
    """`sft@200` -> ("sft", 200)."""
    name, at, step = text.partition("@")
    if at and not step.isdigit():
        raise UserError(f"{step!r} is not a step", fix=f"write {name}@200", reason="bad_step")
    return name, int(step) if at else None
