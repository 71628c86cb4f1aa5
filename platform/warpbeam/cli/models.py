"""`warpbeam models`: what was exported, newest version first."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from warpbeam.cli.options import Json, Pool, Store, Team, open_runs
from warpbeam.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore


@dataclass(frozen=True)
class StoredModel:
    """One sealed version of a model."""

    team: str
    name: str
    version: str
    run: str
    step: int
    at: str
    uri: str


def models(team: Team = None, pool: Pool = None, store: Store = None, json: Json = False) -> None:
    """List exported models."""
    found = list_models(open_runs(pool, store), team)
    if json:
        print_json([asdict(model) for model in found])
    elif not found:
        say("no models yet: `warpbeam export RUN` makes one")
    else:
        rows = [(model.name, model.version, model.team, model.run, model.step, model.at) for model in found]
        print_table(("MODEL", "VERSION", "TEAM", "RUN", "STEP", "AT"), rows, right=("STEP",))


def list_models(store: ObjectStore, team: str | None = None, name: str | None = None) -> list[StoredModel]:
    """Sealed versions, newest first. An export that was broken off has no seal and is not listed."""
    from warpbeam.checkpoint.export import LINEAGE, SEAL
    from warpbeam.storage.layout import model_prefix, models_prefix

    found = []
    for owner in [team] if team else store.list_dirs("teams"):
        for model in [name] if name else store.list_dirs(models_prefix(owner)):
            for version in store.list_dirs(f"{models_prefix(owner)}/{model}"):
                prefix = model_prefix(owner, model, version)
                if store.head(f"{prefix}/{SEAL}") is None:
                    continue
                lineage = json_module.loads(store.get(f"{prefix}/{LINEAGE}"))
                run, step, at = lineage["run"], int(lineage["step"]), lineage["at"]
                found.append(StoredModel(owner, model, version, run, step, at, f"{store.uri}/{prefix}"))
    return sorted(found, key=lambda model: model.at, reverse=True)
