"""Options that several verbs share, so that the same word means the same everywhere; and the store they lead to."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from warpbeam.storage.config import StorageConfig
    from warpbeam.storage.store import ObjectStore

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
OptionalJobFile = Annotated[Path | None, typer.Argument(metavar="[JOB.yaml]", help="The job file.", show_default=False)]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's name, or TEAM/RUN.", show_default=False)]
Pool = Annotated[
    str | None,
    typer.Option("--pool", metavar="POOL", help="A pool file, or a name in cluster/pools. Default: this machine."),
]
Store = Annotated[
    str | None,
    typer.Option("--store", metavar="URI", help="Where runs are kept, when it is not the pool's default store."),
]
Team = Annotated[str | None, typer.Option("--team", metavar="TEAM", help="Only this team. Default: all.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts; errors too.")]
Context = Annotated[
    str | None,
    typer.Option("--context", metavar="CONTEXT", help="Of the kubeconfig. Default: its current one."),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAMESPACE", help="Kubernetes' own. Default: the team's in the pool."),
]
Force = Annotated[bool, typer.Option("--force", help="Start although the plan says that it cannot fit.")]
Accelerators = Annotated[
    int | None,
    typer.Option("--accelerators", metavar="N", min=1, help="Use N accelerators instead of what the job says."),
]


def storage_config(pool: str | None, store: str | None) -> StorageConfig:
    """Where runs are: `--store` in the pool's surroundings, else the pool's default."""
    from warpbeam.pool import load_pool

    return load_pool(pool).pool.storage_config(store)


def place_options(pool: str | None, store: str | None = None) -> str:
    """What a printed command needs, to look in the same store as this one did; begins with a space, or is empty."""
    given = {"--pool": pool, "--store": store}
    return "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)


def open_runs(pool: str | None, store: str | None) -> ObjectStore:
    """The store that the watching verbs read, once it has answered."""
    from warpbeam.storage.check import check_reachable
    from warpbeam.storage.connect import open_store

    config = storage_config(pool, store)
    check_reachable(config)
    return open_store(config)
