"""Where this machine's Serve is and what it serves: one 0600 file, written by the server, read by every command.

The server (local_server.py) outlives the command that started it; later commands find it here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from warpbeam.storage.disk import replace_file
from warpbeam.storage.processes import ProcessIdentity, is_running

SCHEMA = "warpbeam/local-serve/v1"


@dataclass(frozen=True)
class Served:
    """One deployment."""

    route: str
    """`/` or `/<name>`."""
    model: str
    token_file: str | None


@dataclass(frozen=True)
class LocalServe:
    """A running server."""

    process: ProcessIdentity
    host: str
    port: int
    short_dir: str
    """Ray's files and the control socket: their paths must stay under 107 characters, so not below home."""
    deployments: dict[str, Served] = field(default_factory=dict)

    @property
    def control_socket(self) -> Path:
        return Path(self.short_dir) / "control.sock"

    def url(self, name: str) -> str:
        """What clients use as base URL, without `/v1`."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "localhost") else self.host
        bracketed = f"[{host}]" if ":" in host else host
        return f"http://{bracketed}:{self.port}{self.deployments[name].route.rstrip('/')}"


def serve_folder(home: Path) -> Path:
    """Where this home keeps what belongs to its Serve."""
    return home.expanduser().absolute() / "serve"


def read_state(home: Path) -> LocalServe | None:
    """The last server written down, running or not; None when there is none or the file is of another version."""
    try:
        value = json.loads((serve_folder(home) / "state.json").read_text("utf-8"))
        if value.pop("schema") != SCHEMA:
            return None
        deployments = {name: Served(**served) for name, served in value.pop("deployments").items()}
        return LocalServe(process=ProcessIdentity(**value.pop("process")), deployments=deployments, **value)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def running_state(home: Path) -> LocalServe | None:
    """The server of this home, if it runs."""
    state = read_state(home)
    return state if state is not None and is_running(state.process) else None


def write_state(home: Path, state: LocalServe) -> None:
    """Replace the file, readable by its owner only."""
    value: dict[str, Any] = {"schema": SCHEMA, **asdict(state)}
    replace_file(serve_folder(home) / "state.json", json.dumps(value, indent=1).encode(), mode=0o600)


def remove_state(home: Path) -> None:
    """Forget the server."""
    (serve_folder(home) / "state.json").unlink(missing_ok=True)
