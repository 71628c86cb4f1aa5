"""Start, ask and stop the process that serves on this machine (local_server.py), from any command.

Commands need neither Ray nor torch: they write a configuration to its standard input, JSON lines to its socket, and
read its state file.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from warpbeam.errors import InfraError, PlatformError, UserError
from warpbeam.serve.guard import TOKEN_ENV
from warpbeam.serve.local_state import LocalServe, read_state, remove_state, running_state, serve_folder
from warpbeam.storage.processes import ProcessIdentity, end_process, identify, is_running

START_TIMEOUT_S = 300.0
"""Ray starts ten processes: a dozen seconds on an idle machine, minutes on a busy one."""
STOP_GRACE_S = 20.0
PORTS_TRIED = 50


def start_server(home: Path, host: str, port: int, notes: list[str]) -> LocalServe:
    """Start it on this port or the next free one (then a note says so); ready for commands when this returns.

    Raises:
        InfraError: Ray or Serve did not start, not the second time either: Ray has deadlines of its own for starting,
            which a busy machine may miss.
    """
    try:
        return _start(home, host, port, notes)
    except InfraError as error:
        if error.reason != "serve_not_started":
            raise
        notes.append("Ray Serve did not start at the first try")
        return _start(home, host, port, notes)


def _start(home: Path, host: str, port: int, notes: list[str]) -> LocalServe:
    old = read_state(home)
    if old is not None:
        shutil.rmtree(old.short_dir, ignore_errors=True)
        remove_state(home)
    free = _free_port(host, port)
    if port not in (0, free):
        notes.append(f"port {port} is in use: {free} was taken instead")
    short_dir = tempfile.mkdtemp(prefix="warpbeam-serve-", dir="/tmp")
    return _wait_started(home, _spawn(home, {"home": str(home), "host": host, "port": free, "short_dir": short_dir}))


def _spawn(home: Path, config: dict[str, Any]) -> ProcessIdentity:
    folder = serve_folder(home)
    # Each deployment's token is in its own file; one from the environment would count for all.
    environment = {key: value for key, value in os.environ.items() if key != TOKEN_ENV} | {"WARPBEAM_HOME": str(home)}
    with open(folder / "server.log", "wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "warpbeam.serve.local_server"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    assert child.stdin is not None
    child.stdin.write(json.dumps(config).encode())
    child.stdin.close()
    process = identify(child.pid) or ProcessIdentity(child.pid, 0, "", "")
    child.returncode = 0  # never waited for: it outlives us, and Popen would warn about that
    return process


def _free_port(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (*range(port, min(port + PORTS_TRIED, 2**16)), 0) if port else (0,):
        with socket.socket(family) as probe:
            # Serve sets it too: a port in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise InfraError(f"no port is free on {host}", reason="no_port")


def _wait_started(home: Path, process: ProcessIdentity) -> LocalServe:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and is_running(process):
        state = running_state(home)
        if state is not None and state.process == process:
            return state
        time.sleep(0.05)
    end_process(process, grace_s=STOP_GRACE_S)
    log = serve_folder(home) / "server.log"
    lines = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    raise InfraError(
        "Ray Serve did not start",
        why=f"its last word: {lines[-1].strip()}" if lines else "it said nothing",
        fix=f"the same command tries again; {log} has everything it said",
        reason="serve_not_started",
    )


def send_command(state: LocalServe, command: dict[str, Any]) -> None:
    """Carry out a command in the server; its error is raised here.

    Raises:
        UserError, InfraError: what the server answered, or that it is gone.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(state.control_socket))
            connection.sendall(json.dumps(command).encode() + b"\n")
            reply = connection.makefile().readline()
        answer = json.loads(reply)
    except (OSError, ValueError) as error:
        raise InfraError(
            "this machine's Serve ended while it was asked",
            why=str(error),
            fix="run the command again: a new one is started",
            reason="serve_gone",
        ) from error
    if not answer["ok"]:
        told = answer["error"]
        kind = UserError if told["owner"] == "ml" else InfraError
        raise kind(told["what"], why=told["why"], fix=told["fix"], reason=told["reason"])


def stop_server(home: Path, state: LocalServe) -> None:
    """End it, its Ray and all they started, and nothing else."""
    # Some of Ray's helpers notice only after a while that their Ray has ended.
    try:
        helpers = psutil.Process(state.process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        helpers = []
    end_process(state.process, grace_s=STOP_GRACE_S)
    _, left = psutil.wait_procs(helpers, timeout=2)
    for helper in left:
        with suppress(psutil.NoSuchProcess):
            helper.kill()
    psutil.wait_procs(left, timeout=5)
    shutil.rmtree(state.short_dir, ignore_errors=True)
    remove_state(home)


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """One deploying command a home."""
    try:
        import fcntl
    except ImportError as error:
        raise PlatformError(
            "local serving runs on Linux and macOS only",
            fix="deploy serve/chat/serve.yaml on a Ray cluster",
            reason="serve_unsupported",
        ) from error
    folder = serve_folder(home)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
