"""The process that serves on this machine: it owns a Ray of its own and outlives the command that started it.

    python -P -m warpbeam.serve.local_server < config.json

Being Ray's driver, it takes all of Ray with it when it ends, however it ends; nothing needs to be hunted down. Commands
talk to it over a Unix socket (JSON lines), so they need not import Ray. Ray listens on all interfaces for its own
purposes, so token authentication is switched on: nobody without this home's files can submit work to it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import socketserver
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from warpbeam.errors import InfraError, UserError, WarpbeamError
from warpbeam.launch.ray_start import lean_and_patient
from warpbeam.serve.local_state import LocalServe, Served, remove_state, serve_folder, write_state
from warpbeam.storage.disk import replace_file
from warpbeam.storage.processes import ProcessIdentity, identify

logger = logging.getLogger("warpbeam.serve")

OBJECT_STORE_BYTES = 100 * 2**20
"""Requests and answers are small; Ray's minimum is 75 MiB."""


def main() -> None:
    """Start Ray and Serve, then carry out commands until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config = json.load(sys.stdin)
    home = Path(config["home"])
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = identify(os.getpid())
    assert process is not None
    server = LocalServer(home, process, config["host"], config["port"], config["short_dir"])
    try:
        server.start()
        server.serve_forever()
    finally:
        server.close()


def _end(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


class LocalServer:
    """Ray, Serve and the commands' socket."""

    def __init__(self, home: Path, process: ProcessIdentity, host: str, port: int, short_dir: str) -> None:
        self._home = home
        self._state = LocalServe(process=process, host=host, port=port, short_dir=short_dir)
        self._apps: dict[str, Any] = {}
        """What each name serves, to go back to when its next version does not start."""

    def start(self) -> None:
        """Ready for commands when it returns; the state file appears then."""
        _authenticate_ray(serve_folder(self._home))
        import ray
        from ray import serve

        with lean_and_patient():
            ray.init(
                address="local",
                include_dashboard=False,
                num_cpus=1,  # Ray starts a process for each; replicas ask for none
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                _temp_dir=self._state.short_dir,
            )
        self._gpus = int(ray.cluster_resources().get("GPU", 0))
        serve.start(
            http_options={"host": self._state.host, "port": self._state.port},
            logging_config={"enable_access_log": False},
        )
        self._commands = socketserver.UnixStreamServer(str(self._state.control_socket), _handler_for(self))
        self._state.control_socket.chmod(0o600)
        write_state(self._home, self._state)

    def serve_forever(self) -> None:
        """Commands, one at a time."""
        self._commands.serve_forever()

    def close(self) -> None:
        """End Ray and forget this server."""
        remove_state(self._home)
        import ray
        from ray import serve

        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
        shutil.rmtree(self._state.short_dir, ignore_errors=True)

    def carry_out(self, command: dict[str, Any]) -> None:
        """One command of deploy.py.

        Raises:
            WarpbeamError: it failed.
        """
        match command["do"]:
            case "deploy":
                self._deploy(command["args"], command["route"])
            case "delete":
                self._delete(command["name"])
            case other:
                raise UserError(f"unknown command {other!r}")

    def _deploy(self, args: dict[str, Any], route: str) -> None:
        from ray import serve

        from warpbeam.serve.app import AppArgs, build_app

        name = args["name"]
        failure_file = Path(self._state.short_dir) / "failure.json"
        failure_file.unlink(missing_ok=True)
        app = build_app(
            AppArgs(
                **args,
                cpus_per_replica=0,
                gpus_per_replica=1 if self._gpus >= args["replicas"] else 0,
                failure_file=str(failure_file),
            )
        )
        try:
            serve.run(app, name=name, route_prefix=route)
        except Exception as error:
            logger.exception("deploying %s failed", name)
            if name in self._apps:
                serve.run(self._apps[name], name=name, route_prefix=route)
            else:
                serve.delete(name)
            raise _why(error, failure_file, name) from error
        self._apps[name] = app
        served = Served(route=route, model=args["model"], token_file=args["token_file"])
        self._remember({**self._state.deployments, name: served})

    def _delete(self, name: str) -> None:
        from ray import serve

        serve.delete(name)
        self._apps.pop(name, None)
        self._remember({key: value for key, value in self._state.deployments.items() if key != name})

    def _remember(self, deployments: dict[str, Served]) -> None:
        self._state = replace(self._state, deployments=deployments)
        write_state(self._home, self._state)


def _why(error: Exception, failure_file: Path, name: str) -> WarpbeamError:
    """The replica's own words, if it left any."""
    if failure_file.is_file():
        told = json.loads(failure_file.read_text("utf-8"))
        kind = UserError if told["owner"] == "ml" else InfraError
        return kind(told["what"], why=told["why"], fix=told["fix"], reason=told["reason"])
    return InfraError(f"{name} could not be started", why=str(error)[-2000:], reason="replica_failed")


def _authenticate_ray(folder: Path) -> None:
    """Must precede the import of ray. The token is this server's own and stays in a 0600 file."""
    token_file = folder / "ray-token"
    replace_file(token_file, secrets.token_hex(32).encode(), mode=0o600)
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token_file)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def _handler_for(server: LocalServer) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                server.carry_out(json.loads(self.rfile.readline()))
                answer: dict[str, Any] = {"ok": True}
            except WarpbeamError as error:
                answer = {"ok": False, "error": error.to_dict()}
            except Exception as error:
                logger.exception("a command failed")
                answer = {"ok": False, "error": InfraError(f"Serve failed: {error}").to_dict()}
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    return Handler


if __name__ == "__main__":
    main()
