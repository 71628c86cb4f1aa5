"""The S3 server of a laptop: started once, shared by every command, found again through a 0600 state file.

It outlives the command that started it (an endpoint that is served, or a second run, still needs it). Later commands
attach while it lives and restart it on the same data, ports and secret when it does not; a lock decides between
commands that start it at the same time, and a second lock that the server itself inherits keeps two servers off one
data folder, whatever happened to the state file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from warpbeam.errors import DiskFull, InfraError, PlatformError
from warpbeam.precedence import standing_back
from warpbeam.storage import seaweedfs
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.disk import disk_errors, replace_file
from warpbeam.storage.processes import ProcessIdentity, end_process, identify, is_running
from warpbeam.storage.s3_client import PROBE_SETTINGS, signed_client
from warpbeam.storage.s3_errors import S3_ERRORS, error_code, status_code
from warpbeam.storage.seaweedfs import Ports

_log = logging.getLogger(__name__)

BUCKET = "warpbeam"
START_TIMEOUT_S = 60.0
"""One restart in eleven took 20 s where others took one (facts section 3)."""
STOP_GRACE_S = 10.0
_LOW_DISK_BYTES = 1536 << 20
_LOCK_TIMEOUT_S = 3 * START_TIMEOUT_S
_SCHEMA = "warpbeam/embedded-s3/v1"


@dataclass(frozen=True)
class EmbeddedServer:
    """A server that answered just now."""

    endpoint_url: str
    access_key: str
    secret_key: str = field(repr=False)
    bucket: str
    data_dir: Path
    pid: int

    def storage_config(self, prefix: str = "") -> StorageConfig:
        """The address to hand on; holds no secret."""
        uri = f"s3://{self.bucket}/{prefix}" if prefix else f"s3://{self.bucket}"
        return StorageConfig(uri=uri, kind="embedded", endpoint_url=self.endpoint_url)


@dataclass(frozen=True)
class _State:
    """What the state file holds: enough to attach, to restart and to stop."""

    access_key: str
    secret_key: str = field(repr=False)
    ports: Ports
    process: ProcessIdentity
    socket_dir: str
    earlier_endpoints: tuple[str, ...] = ()
    """Addresses that the same data had before; configs that still name one of them mean this server."""
    bucket: str = BUCKET

    @property
    def endpoint_url(self) -> str:
        return f"http://{seaweedfs.HOST}:{self.ports['s3.port']}"

    def server(self, folder: Path) -> EmbeddedServer:
        return EmbeddedServer(
            self.endpoint_url, self.access_key, self.secret_key, self.bucket, folder / "data", self.process.pid
        )


def home() -> Path:
    """Where warpbeam keeps what belongs to this user on this machine: WARPBEAM_HOME, else ~/.warpbeam."""
    return Path(os.environ.get("WARPBEAM_HOME") or "~/.warpbeam").expanduser().absolute()


def ensure_server(home: Path) -> EmbeddedServer:
    """Attach to the server of this home, or start it, or restart it on the same data; ready when this returns."""
    folder = home.expanduser().absolute() / "s3"
    state = _read_state(folder)
    if state is not None and is_running(state.process) and _answers(state):
        return state.server(folder)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "data").mkdir(exist_ok=True)
    with _locked(folder / "start.lock", _LOCK_TIMEOUT_S):
        state = _read_state(folder)
        if state is not None and is_running(state.process):
            if _wait_ready(state, folder):
                return state.server(folder)
            end_process(state.process, grace_s=STOP_GRACE_S)
        return _start(folder, state).server(folder)


def stop_server(home: Path) -> bool:
    """End the server of this home; True when one was running. Its data, ports and secret stay for the next start."""
    folder = home.expanduser().absolute() / "s3"
    if not folder.is_dir():
        return False
    with _locked(folder / "start.lock", _LOCK_TIMEOUT_S):
        state = _read_state(folder)
        process = state.process if state is not None else _lock_holder(folder)
        running = process is not None and is_running(process)
        if process is not None and running:
            end_process(process, grace_s=STOP_GRACE_S)
        if state is not None:
            _remove_sockets(state)
            if Path(state.socket_dir).parent != folder:
                shutil.rmtree(state.socket_dir, ignore_errors=True)
        return running


def disk_full(home: Path) -> DiskFull | None:
    """The error to give for a failed write when the disk of this home is (nearly) full, else None."""
    data_dir = home / "s3" / "data"
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(data_dir)
        if usage.free < _LOW_DISK_BYTES:
            return DiskFull(
                f"disk full: {data_dir}",
                why=f"{usage.free / 2**20:.0f} MiB free of {usage.total / 2**30:.1f} GiB; the embedded S3 server "
                "needs about 1 GiB to go on writing",
                fix="free space on that disk, or set WARPBEAM_HOME to a folder on a larger one",
            )
    return None


def server_for(config: StorageConfig) -> EmbeddedServer:
    """The server that an `embedded` config means: the one of this process's home.

    A process with another home (a Ray worker that did not get WARPBEAM_HOME) would read and write an empty store
    without noticing, so an address that this home never had is refused.
    """
    here = home()
    state = _read_state(here / "s3")
    wanted = config.endpoint_url
    if wanted is not None and (state is None or wanted not in (state.endpoint_url, *state.earlier_endpoints)):
        raise PlatformError(
            f"the embedded S3 server at {wanted} does not belong to {here}",
            why=f"{here / 's3' / 'state.json'} " + ("is missing" if state is None else f"names {state.endpoint_url}"),
            fix="set WARPBEAM_HOME to the folder of the command that started it; the embedded server serves one "
            "machine only: for several, name an S3 store in the pool's `storage:`",
            reason="other_home",
        )
    return ensure_server(here)


def _start(folder: Path, old: _State | None) -> _State:
    """Start the program, on the old ports when they are free; other ports when somebody was faster."""
    binary = seaweedfs.find_binary()
    _end_orphan(folder)
    for attempt in range(3):
        ports = old.ports if old and attempt == 0 and seaweedfs.all_free(old.ports) else seaweedfs.pick_ports()
        state = _launch(folder, old, binary, ports)
        if old is not None and old.ports != ports:
            _remove_sockets(old)
        if old is not None and old.endpoint_url != state.endpoint_url:
            _log.warning("embedded S3: %s is taken by another program, now at %s", old.endpoint_url, state.endpoint_url)
        if _wait_ready(state, folder):
            return state
        ended = not is_running(state.process)
        end_process(state.process, grace_s=STOP_GRACE_S)
        if not ended:
            break
    raise disk_full(folder.parent) or InfraError(
        "the embedded S3 server did not start",
        why=f"last lines of {folder / 'server.log'}:\n{_log_tail(folder)}",
        fix="mend what the lines name, then run the command again (its data is kept)",
        reason="embedded_failed",
    )


def _launch(folder: Path, old: _State | None, binary: Path, ports: Ports) -> _State:
    access_key = old.access_key if old else secrets.token_hex(10)
    secret_key = old.secret_key if old else secrets.token_urlsafe(30)
    socket_dir = _socket_dir(folder, old)
    with disk_errors(folder):
        replace_file(folder / "s3.json", seaweedfs.credential_file(access_key, secret_key), mode=0o600)
        log = _fresh_log(folder)
    arguments = seaweedfs.command(
        binary, data_dir=folder / "data", socket_dir=socket_dir, credentials=folder / "s3.json", ports=ports
    )
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, log)
        lock = stack.enter_context(_locked(folder / "server.lock", STOP_GRACE_S))
        # The lock's descriptor goes to the server and is closed here: the lock lives exactly as long as the server.
        with standing_back():
            child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=seaweedfs.environment(folder),
                pass_fds=(lock,),
                start_new_session=True,
            )
        process = identify(child.pid) or ProcessIdentity(child.pid, 0, "", "")
        child.returncode = 0  # never waited for: it outlives us, and Popen would warn about that
        state = _State(access_key, secret_key, ports, process, str(socket_dir), _earlier(old, ports))
        with disk_errors(folder):
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps(asdict(process)).encode(), 0)
            _write_state(folder, state)
    return state


def _earlier(old: _State | None, ports: Ports) -> tuple[str, ...]:
    if old is None:
        return ()
    if old.ports == ports:
        return old.earlier_endpoints
    return (*old.earlier_endpoints, old.endpoint_url)[-16:]


def _end_orphan(folder: Path) -> None:
    """End a server that still holds the data folder although no state file leads to it."""
    process = _lock_holder(folder)
    if process is not None and is_running(process):
        end_process(process, grace_s=STOP_GRACE_S)


def _lock_holder(folder: Path) -> ProcessIdentity | None:
    try:
        return ProcessIdentity(**json.loads((folder / "server.lock").read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _wait_ready(state: _State, folder: Path) -> bool:
    """Poll until a signed write succeeds and the bucket exists; False when the process ended or time is up."""
    client = signed_client(state.endpoint_url, state.access_key, state.secret_key, PROBE_SETTINGS)
    deadline = time.monotonic() + START_TIMEOUT_S
    last: Exception | None = None
    while time.monotonic() < deadline and is_running(state.process):
        try:
            with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
                client.create_bucket(Bucket=state.bucket)
            client.put_object(Bucket=state.bucket, Key="probe/health", Body=b"{}")
            client.delete_object(Bucket=state.bucket, Key="probe/health")
            return True
        except S3_ERRORS as error:
            last = error
            if status_code(error) == 500 and disk_full(folder.parent) is not None:
                return _answers(state)  # a full disk can still be read; writes will say what is wrong
            time.sleep(0.05)
    if last is not None and is_running(state.process):
        with contextlib.suppress(OSError), (folder / "server.log").open("a") as log:
            log.write(f"warpbeam: not ready after {START_TIMEOUT_S:.0f} s: {error_code(last) or last}\n")
    return False


def _answers(state: _State) -> bool:
    try:
        signed_client(state.endpoint_url, state.access_key, state.secret_key, PROBE_SETTINGS).head_bucket(
            Bucket=state.bucket
        )
    except (ClientError, *S3_ERRORS):
        return False
    return True


def _read_state(folder: Path) -> _State | None:
    try:
        value: dict[str, Any] = json.loads((folder / "state.json").read_bytes())
        if value.pop("schema") != _SCHEMA:
            return None
        value.pop("endpoint_url")
        process = ProcessIdentity(**value.pop("process"))
        return _State(process=process, earlier_endpoints=tuple(value.pop("earlier_endpoints")), **value)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PlatformError(f"cannot read {folder / 'state.json'}", why=str(error), reason="no_permission") from error
    except (ValueError, KeyError, TypeError):
        return None  # an unreadable file is rebuilt by the next start; the data is elsewhere


def _write_state(folder: Path, state: _State) -> None:
    value = {"schema": _SCHEMA, "endpoint_url": state.endpoint_url, **asdict(state)}
    replace_file(folder / "state.json", json.dumps(value, indent=1).encode(), mode=0o600)


def _socket_dir(folder: Path, old: _State | None) -> Path:
    """A folder for the server's Unix sockets, whose paths may have 107 bytes at most."""
    inside = folder / "sk"
    if len(os.fsencode(inside)) <= 60:
        inside.mkdir(exist_ok=True, mode=0o700)
        return inside
    if old is not None and Path(old.socket_dir).is_dir():
        return Path(old.socket_dir)
    return Path(tempfile.mkdtemp(prefix="warpbeam-s3-", dir="/tmp"))


def _remove_sockets(state: _State) -> None:
    """The server leaves its gRPC sockets in /tmp, named by port, and cannot be told otherwise."""
    for port in state.ports.values():
        for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):
            left.unlink(missing_ok=True)


def _fresh_log(folder: Path) -> int:
    path = folder / "server.log"
    with contextlib.suppress(FileNotFoundError):
        path.replace(folder / "server.log.1")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _log_tail(folder: Path) -> str:
    try:
        lines = (folder / "server.log").read_text(errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(f"  {line}" for line in lines[-5:]) or "  (empty)"


@contextlib.contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[int]:
    """Hold an exclusive lock on the file; yields its descriptor."""
    try:
        import fcntl
    except ImportError as error:
        raise PlatformError(
            "the embedded S3 server runs on Linux and macOS only",
            fix="name an S3 store or a local folder in the pool's `storage:`",
            reason="embedded_unsupported",
        ) from error
    with disk_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise InfraError(
                        f"another process has held {path} for {timeout_s:.0f} s",
                        why="a server still runs on this data, or another command is starting it",
                        fix="wait for the other command, or end the process that `fuser` names for this file",
                        reason="embedded_locked",
                    ) from error
                time.sleep(0.05)
        yield descriptor
    finally:
        os.close(descriptor)
