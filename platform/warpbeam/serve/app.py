"""A model folder as a Ray Serve application: one deployment that is ingress and engine at once.

The engine lives in the replica that speaks HTTP, so a token crosses no process between the two. The ASGI application is
built in the replica: Serve pickles deployment classes by value, and a module-level application would be another copy.

    serve run warpbeam.serve.app:build_app model=/path/to/model
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve

from warpbeam.errors import UserError, WarpbeamError
from warpbeam.serve.engine_options import EngineOptions
from warpbeam.serve.guard import TOKEN_ENV

logger = logging.getLogger(__name__)


class AppArgs(BaseModel):
    """`args:` of the application in a Serve config file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str
    """A folder, s3://bucket/prefix or hf://organisation/name."""
    name: str | None = None
    """What requests call the model; None: the last part of `model`."""
    storage: dict[str, Any] | None = None
    """A StorageConfig for s3:// models."""
    token_file: str | None = None
    require_token: bool = False
    """Refuse to start without a token: set it wherever the port can be reached from outside."""
    replicas: int = 1
    cpus_per_replica: float = 1
    gpus_per_replica: float = 0
    engine: EngineOptions = EngineOptions()
    failure_file: str | None = None
    """Where a replica that cannot start says why, for `warpbeam deploy`."""


class ModelServer:
    """One replica."""

    async def __init__(self, args: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        self._args = AppArgs.model_validate(args)
        try:
            await self._start()
        except WarpbeamError as error:
            if self._args.failure_file is not None:
                Path(self._args.failure_file).write_text(json.dumps(error.to_dict()), "utf-8")
            raise

    async def _start(self) -> None:
        # Imports of seconds, and only in replicas.
        from warpbeam.serve.model_folder import open_model_folder
        from warpbeam.serve.service import Service
        from warpbeam.serve.transformers_engine import TransformersEngine

        self._token = find_token(self._args)
        folder = open_model_folder(fetch(self._args))
        for note in folder.notes:
            logger.warning("%s: %s", self._args.model, note)
        engine = TransformersEngine(folder, self._args.engine)
        await engine.start()
        self._service = Service(served_name(self._args), folder, engine)

    def __serve_build_asgi_app__(self) -> Any:
        """Ray Serve's hook, called once after `__init__`."""
        from warpbeam.serve.openai_api import build_asgi_app

        return build_asgi_app(self._service, self._token)

    async def check_health(self) -> None:
        """Ray Serve's hook: an error makes it replace this replica."""
        if not self._service.engine.healthy():
            raise RuntimeError("the engine has ended")


_deployment: Any = serve.deployment(
    # More than the engine computes at once, so that its queue never runs dry; the rest waits in Serve.
    max_ongoing_requests=128,
    health_check_period_s=2,
    health_check_timeout_s=30,
    graceful_shutdown_timeout_s=30,
    # A folder that cannot be served does not get better by trying. (A replica that dies later is always replaced.)
    max_constructor_retry_count=1,
)(serve.ingress()(ModelServer))


def build_app(args: AppArgs | dict[str, Any]) -> serve.Application:
    """The application, for serve.run and for Serve config files (`import_path: warpbeam.serve.app:build_app`).

    Args:
        args: a dict when Ray Serve calls it: it converts only where annotations are not postponed.

    Raises:
        pydantic.ValidationError: an unknown field or a wrong type.
    """
    args = AppArgs.model_validate(args)
    deployment = _deployment.options(
        num_replicas=args.replicas,
        ray_actor_options={"num_cpus": args.cpus_per_replica, "num_gpus": args.gpus_per_replica},
    )
    return deployment.bind(args.model_dump())


def served_name(args: AppArgs) -> str:
    """What requests call the model."""
    return args.name or args.model.rstrip("/").rpartition("/")[2]


def fetch(args: AppArgs) -> Path:
    """The model as a local folder.

    Raises:
        UserError: there is no such model.
    """
    from warpbeam.checkpoint.weights import fetch_model_folder
    from warpbeam.storage.config import StorageConfig
    from warpbeam.storage.embedded import home

    config = StorageConfig.from_dict(args.storage) if args.storage else None
    return fetch_model_folder(args.model, config, home() / "cache" / "models")


def find_token(args: AppArgs) -> str | None:
    """The token that clients must send, or None.

    Raises:
        UserError: a token is required and there is none, or its file is empty.
    """
    token = os.environ.get(TOKEN_ENV, "")
    if args.token_file is not None:
        token = Path(args.token_file).read_text("utf-8").strip()
        if not token:
            raise UserError(f"the token file {args.token_file} is empty", reason="no_token")
    if args.require_token and not token:
        raise UserError(
            "this application must not run without a token",
            fix=f"set {TOKEN_ENV} in the environment of the replicas, or give a token_file",
            reason="no_token",
        )
    return token or None
