"""`warpbeam deploy MODEL|RUN`: serve a model on this machine, behind the OpenAI API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from warpbeam.cli.options import Json, Pool, Store, Team, storage_config
from warpbeam.cli.output import note, print_json, say, warn
from warpbeam.errors import UserError

if TYPE_CHECKING:
    from warpbeam.storage.config import StorageConfig
    from warpbeam.storage.store import ObjectStore

ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="An exported model, a run (exported first), a folder, s3:// or hf://."),
]
Name = Annotated[str | None, typer.Option("--name", help="What requests call it. Default: the model's name.")]
Host = Annotated[str, typer.Option("--host", help="Beyond 127.0.0.1, requests need a token.")]
Port = Annotated[int, typer.Option("--port", help="The next free one when it is taken.")]
Version = Annotated[str | None, typer.Option("--version", help="Of an exported model. Default: the newest.")]


def deploy(
    model: ModelName,
    name: Name = None,
    version: Version = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    replicas: Annotated[int, typer.Option("--replicas", min=1)] = 1,
    team: Team = None,
    pool: Pool = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Serve a model on this machine behind the OpenAI API.

    It goes on answering after this command has ended, until `warpbeam down`.
    """
    from warpbeam.serve.deploy import deploy as serve_model

    config = storage_config(pool, store)
    uri, default_name = find_model(model, config, team, version)
    served = serve_model(
        uri,
        name=name or default_name,
        host=host,
        port=port,
        replicas=replicas,
        storage=config,
        progress=lambda text: None if json else note(text),
    )
    if json:
        value = {"name": served.name, "url": served.url, "model": served.model, "notes": list(served.notes)}
        print_json(value | {"token_file": str(served.token_file) if served.token_file else None})
        return
    for text in served.notes:
        warn(text)
    say(f"{served.name} answers at {served.url}/v1")
    if served.token_file:
        say(f"  its token is in {served.token_file}")
    say(f"  $ warpbeam chat {served.name}")
    token = f' -H "Authorization: Bearer $(cat {served.token_file})"' if served.token_file else ""
    say(f"  $ curl{token} {served.url}/v1/models")


def _name_of(address: str) -> str:
    """`mine` for .../models/mine/3 in a store, else the last part."""
    parts = address.rstrip("/").split("/")
    return parts[-2] if len(parts) > 2 and parts[-3] == "models" else parts[-1]


def _neither(name: str, store: ObjectStore, team: str | None, no_run: UserError) -> UserError:
    """No model and no run of this name: say what there is of both."""
    from warpbeam.cli.models import list_models

    if no_run.reason != "no_such_run":
        return no_run
    names = list(dict.fromkeys(found.name for found in list_models(store, team)))[:5]
    models = f"the newest models there: {', '.join(names)}" if names else "there are no models"
    return UserError(
        f"there is no model and no run {name!r} in {store.uri}",
        why=f"{models}; {no_run.why}",
        fix="`warpbeam models` and `warpbeam list` show all; a folder is written ./NAME",
        reason="no_such_model",
    )


def find_model(model: str, config: StorageConfig, team: str | None, version: str | None) -> tuple[str, str]:
    """(address, default name) of what a person named. A run that was never exported is exported now."""
    from pathlib import Path

    from warpbeam.checkpoint.export import export_model
    from warpbeam.cli.models import list_models
    from warpbeam.record.view import find_run
    from warpbeam.storage.connect import open_store

    if "://" in model:
        return model, _name_of(model)
    # A bare name is a model or a run, whatever lies in this folder: `init` makes a folder of the run's own name.
    folder = Path(model).expanduser()
    if model.startswith((".", "~", "/")) or model.endswith("/") or (folder / "config.json").is_file():
        return str(folder), folder.resolve().name
    if "/" in model:
        team, _, model = model.partition("/")
    store = open_store(config)
    versions = list_models(store, team, model)
    if versions:
        wanted = [found for found in versions if version in (None, found.version)]
        if not wanted:
            raise UserError(
                f"model {model!r} has no version {version!r}",
                fix=f"it has: {', '.join(found.version for found in versions)}",
                reason="no_such_version",
            )
        return wanted[0].uri, model
    try:
        view = find_run(store, model, team)
    except UserError as error:
        raise _neither(model, store, team, error) from error
    note(f"no model is called {model}: exporting the last checkpoint of the run of that name")
    return export_model(view.store, view.team, view.run, "last").uri, model
