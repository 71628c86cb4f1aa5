"""Put a model behind a URL on this machine, and take it away again.

Light on purpose: neither Ray nor torch is imported here. The work is done by one server process a home
(local_server.py), which is started when it is missing (local_control.py) and outlives the command.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpbeam.checkpoint.weights import fetch_model_folder
from warpbeam.errors import UserError, WarpbeamError
from warpbeam.serve.client import served_model
from warpbeam.serve.engine_options import check_options
from warpbeam.serve.guard import TOKEN_ENV
from warpbeam.serve.local_control import locked, send_command, start_server, stop_server
from warpbeam.serve.local_state import LocalServe, running_state, serve_folder
from warpbeam.serve.model_folder import check_files
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.disk import replace_file
from warpbeam.storage.embedded import home as default_home

RESERVED_NAMES = frozenset({"v1", "health"})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TOKEN = re.compile(r"[!-~]{8,512}")


@dataclass(frozen=True)
class Deployment:
    """A model that answers."""

    name: str
    url: str
    """Without `/v1`: OpenAI's clients take `url + "/v1"` as base_url."""
    model: str
    token_file: Path | None
    """0600, None where no token is asked for (loopback only)."""
    notes: tuple[str, ...] = ()
    """What a person should know: another port, a template conflict."""

    @property
    def token(self) -> str | None:
        return None if self.token_file is None else self.token_file.read_text("utf-8").strip()


def deploy(
    model_uri: str,
    *,
    name: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    replicas: int = 1,
    home: Path | None = None,
    storage: StorageConfig | None = None,
    engine: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Deployment:
    """Serve a model; when this returns it answers, and goes on answering after this process has ended.

    The first deployment is at the root of the URL, further names at `/<name>`. The same name again replaces what it
    served: requests wait meanwhile, and if the new model does not start, the old one comes back.

    Args:
        model_uri: a folder, s3://bucket/prefix or hf://organisation/name.
        name: what requests call the model.
        host: an address beyond loopback asks for a token; without one, a token is made.
        port: taken if it is free, else the next free one.
        token: what clients must send; None takes WARPBEAM_SERVE_TOKEN, or keeps the name's earlier token.
        storage: endpoint for s3:// models.
        engine: fields of EngineOptions.
        progress: told what is going on, line by line.

    Raises:
        UserError: a bad argument, or a model that cannot be served.
        InfraError: Ray or Serve did not start.
    """
    home = home or default_home()
    _check(name, host, port, token, replicas)
    options = check_options({"threads": max(1, (_cores() - 1) // replicas), **(engine or {})})  # one for all the rest
    notes: list[str] = []
    with locked(home):
        progress(f"fetching {model_uri}" if "://" in model_uri else f"reading {model_uri}")
        folder = fetch_model_folder(model_uri, storage, home / "cache" / "models").absolute()
        check_files(folder)
        state = running_state(home)
        # What counts is where it listens: a server that is open already makes every deployment on it reachable.
        open_to_others = not _is_loopback(state.host if state else host)
        token_file = _keep_token(home, name, token or os.environ.get(TOKEN_ENV), needed=open_to_others)
        if state is None:
            progress("starting Ray Serve")
            state = start_server(home, host, port, notes)
        else:
            _check_address(state, host, port, notes)
        progress("loading the model")
        args = {
            "model": str(folder),
            "name": name,
            "token_file": None if token_file is None else str(token_file),
            "require_token": token_file is not None,
            "replicas": replicas,
            "engine": options.model_dump(),
        }
        try:
            send_command(state, {"do": "deploy", "args": args, "route": _route(state, name)})
        except WarpbeamError:
            if not state.deployments:
                stop_server(home, state)
            raise
    deployment = find_deployment(name, home)
    card = served_model(deployment.url, deployment.token)
    return Deployment(
        name=name,
        url=deployment.url,
        model=model_uri,
        token_file=token_file,
        notes=(*notes, *card.get("notes", ())),
    )


def deployments(home: Path | None = None) -> list[Deployment]:
    """What is served now, by name."""
    state = running_state(home or default_home())
    if state is None:
        return []
    return [
        Deployment(
            name=name,
            url=state.url(name),
            model=served.model,
            token_file=None if served.token_file is None else Path(served.token_file),
        )
        for name, served in sorted(state.deployments.items())
    ]


def find_deployment(name: str, home: Path | None = None) -> Deployment:
    """The deployment of this name.

    Raises:
        UserError: nothing of this name is served.
    """
    served = {deployment.name: deployment for deployment in deployments(home)}
    if name not in served:
        raise UserError(
            f"nothing called {name!r} is served on this machine",
            why=f"served now: {', '.join(served) or 'nothing'}",
            fix=f"`warpbeam deploy {name}` serves it, if `warpbeam models` or `warpbeam list` shows it",
            reason="not_deployed",
        )
    return served[name]


def undeploy(name: str, home: Path | None = None) -> bool:
    """Take a deployment away, and the server with the last one. False when it was not served."""
    home = home or default_home()
    with locked(home):
        state = running_state(home)
        if state is None or name not in state.deployments:
            return False
        if len(state.deployments) > 1:
            send_command(state, {"do": "delete", "name": name})
        else:
            stop_server(home, state)
    (serve_folder(home) / f"{name}.token").unlink(missing_ok=True)
    return True


def stop_serving(home: Path | None = None) -> bool:
    """End this home's server and everything it serves. False when none ran."""
    home = home or default_home()
    if not serve_folder(home).is_dir():
        return False
    with locked(home):
        state = running_state(home)
        if state is None:
            return False
        stop_server(home, state)
        return True


def _check(name: str, host: str, port: int, token: str | None, replicas: int) -> None:
    _is_loopback(host)
    if not _NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise UserError(
            f"{name!r} cannot be a deployment's name",
            why=f"letters, digits, '.', '_' and '-', not {' or '.join(sorted(RESERVED_NAMES))}: it is part of the URL",
            reason="bad_name",
        )
    if not 0 <= port < 2**16:
        raise UserError(f"port {port} is not between 0 and 65535", reason="bad_port")
    if replicas < 1:
        raise UserError(f"replicas must be at least 1, got {replicas}", reason="bad_replicas")
    if token is not None and not _TOKEN.fullmatch(token):
        raise UserError(
            "the token must be 8 to 512 printable ASCII characters without spaces: it travels in an HTTP header",
            reason="bad_token",
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        raise UserError(
            f"{host!r} is not an address to listen on", fix="write 127.0.0.1 or 0.0.0.0", reason="bad_host"
        ) from error


def _keep_token(home: Path, name: str, token: str | None, *, needed: bool) -> Path | None:
    """Clients' token in its file; a redeployment never loses it silently."""
    file = serve_folder(home) / f"{name}.token"
    if token is None and file.exists():
        return file
    if token is None and not needed:
        return None
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(file, (token or secrets.token_urlsafe(32)).encode(), mode=0o600)
    return file


def _check_address(state: LocalServe, host: str, port: int, notes: list[str]) -> None:
    if not _is_loopback(host) and _is_loopback(state.host):
        raise UserError(
            f"this machine's Serve already runs on {state.host}, so it cannot listen on {host}",
            fix="run `warpbeam down`, then deploy again",
            reason="other_address",
        )
    if port not in (0, state.port):
        notes.append(f"this machine's Serve already runs on port {state.port}: that is used instead of {port}")


def _route(state: LocalServe, name: str) -> str:
    if name in state.deployments:
        return state.deployments[name].route
    return f"/{name}" if any(served.route == "/" for served in state.deployments.values()) else "/"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
