"""Whether a process that we wrote down is still the same process.

A pid alone lies after a reboot or once it is used again; with the start time and the boot id it does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class ProcessIdentity:
    """One process of one machine, for ever."""

    pid: int
    started: int
    """Clock ticks since boot on Linux, elsewhere unix seconds."""
    boot_id: str
    host: str


def identify(pid: int) -> ProcessIdentity | None:
    """The running process with this pid; None when there is none, or it has ended and nobody collected it."""
    started = _start_time(pid)
    return None if started is None else ProcessIdentity(pid, started, boot_id(), socket.gethostname())


def is_running(identity: ProcessIdentity) -> bool:
    """Whether that very process runs, on this machine."""
    return identity.boot_id == boot_id() and _start_time(identity.pid) == identity.started


def boot_id() -> str:
    """Names this boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(int(psutil.boot_time()))


def end_process(identity: ProcessIdentity, *, grace_s: float) -> None:
    """SIGTERM, wait, SIGKILL; nothing when that process is gone already."""
    for signal_number, wait_s in ((signal.SIGTERM, grace_s), (getattr(signal, "SIGKILL", signal.SIGTERM), 10.0)):
        if not is_running(identity):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, signal_number)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and is_running(identity):
            _collect(identity.pid)
            time.sleep(0.05)


def _collect(pid: int) -> None:
    """Reap the process when it is our own child, so that its pid does not linger."""
    if hasattr(os, "waitpid"):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, getattr(os, "WNOHANG", 0))


def _start_time(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except (ProcessLookupError, PermissionError):
        return None
    else:
        # A killed program of many threads shows as a zombie while its last threads still hold files and ports.
        ended = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
        return None if ended else int(fields[19])
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time())
    except psutil.Error:
        return None
