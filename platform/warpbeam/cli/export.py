"""`warpbeam export RUN`: a checkpoint as safetensors, tokenizer and template that plain transformers loads."""

from __future__ import annotations

from typing import Annotated

import typer

from warpbeam.cli.options import Json, Pool, RunName, Store, Team, open_runs, place_options
from warpbeam.cli.output import note, print_json, say, size, warn


def export(
    run: RunName,
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="best|last|STEP", help="best: lowest held-out loss.")
    ] = "last",
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Default: the run's name.")] = None,
    version: Annotated[str | None, typer.Option("--version", help="Default: the next number.")] = None,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Write a run's checkpoint into the model store, streamed from its shards."""
    from warpbeam.checkpoint.export import export_model
    from warpbeam.record.view import find_run

    view = find_run(open_runs(pool, store), run, team)
    model = export_model(
        view.store,
        view.team,
        view.run,
        checkpoint,
        name=name,
        version=version,
        on_file=lambda file, number, of: None if json else note(f"{number}/{of} {file}"),
    )
    if json:
        value = {"name": model.name, "version": model.version, "uri": model.uri, "step": model.step}
        print_json(value | {"bytes": model.size, "files": model.files, "warnings": model.warnings})
        return
    for warning in model.warnings:
        warn(warning)
    say(f"{model.name} version {model.version} from step {model.step}: {size(model.size)}")
    say(f"  {model.uri}")
    say(f"  $ warpbeam deploy {model.name}{place_options(pool, store)}")
