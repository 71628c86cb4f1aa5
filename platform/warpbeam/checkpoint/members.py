"""Which processes belong to an attempt, and whether they still run.

A pid alone says nothing: it is reused, and it means another process in another container. Pid, start time, boot id and
pid namespace together name one process for ever. Only where all of them can be compared do we speak of "this host";
elsewhere an attempt is alive while its heartbeat is young (see `RunLog.alive`).
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class Member:
    """One process of an attempt. `role` is "driver", "rank-0", ...; `start` as `start_time`, `boot_id` as `here`."""

    role: str
    host: str
    pid: int
    start: float
    boot_id: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the log."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Member:
        """Back from JSON."""
        return cls(data["role"], data["host"], int(data["pid"]), float(data["start"]), data["boot_id"])

    @property
    def is_here(self) -> bool:
        """Whether this process could see the member: same boot of the same machine, same pid namespace."""
        return self.boot_id == here()

    def same_process(self, other: Member) -> bool:
        """Whether both are one process, whatever their roles."""
        return (self.pid, self.start, self.boot_id) == (other.pid, other.start, other.boot_id)

    def is_running(self) -> bool:
        """Whether exactly this process runs on this host. A zombie that nobody has reaped does not run."""
        if not self.is_here:
            return False
        try:
            process = psutil.Process(self.pid)
            return start_time(self.pid) == self.start and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
            return False

    def kill(self) -> None:
        """SIGKILL, if it is still exactly this process."""
        if self.is_running():
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return


def this_process(role: str) -> Member:
    """The calling process as a member."""
    return Member(role, socket.gethostname(), os.getpid(), start_time(os.getpid()), here())


def here() -> str:
    """Names this boot of this machine and this pid namespace: "<boot id>/<namespace>"."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()}@{psutil.boot_time():.0f}"


def start_time(pid: int) -> float:
    """When the process began: seconds after boot on Linux (no clock change moves it), else unix time."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name in parentheses may hold spaces
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError:
        return psutil.Process(pid).create_time()


def end_leftovers(
    members: Iterable[Member],
    *,
    wait_s: float = 10.0,
    poll_s: float = 0.1,
    on_event: Callable[[str], None] = lambda text: None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Member]:
    """Wait for the processes of a dead attempt to go by themselves, then SIGKILL those that this host can identify.

    Returns those that had to be killed. Ranks outlive a killed driver by seconds; two engines on one GPU do not fit.
    """
    left = [member for member in members if member.is_running()]
    if left:
        on_event(f"waiting up to {wait_s:.0f} s for {_names(left)} of the earlier attempt to end")
    polls = max(1, round(wait_s / poll_s))
    for _ in range(polls):
        left = [member for member in left if member.is_running()]
        if not left:
            return []
        sleep(poll_s)
    on_event(f"ending {_names(left)} of the earlier attempt: still running after {wait_s:.0f} s")
    for member in left:
        member.kill()
    for _ in range(polls):
        if not any(member.is_running() for member in left):
            break
        sleep(poll_s)
    return left


def _names(members: list[Member]) -> str:
    return ", ".join(f"{member.role} (pid {member.pid})" for member in members)
