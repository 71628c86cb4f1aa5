"""Nodes of a drill: network namespaces of this machine, joined by a bridge, so that ranks meet over real interfaces.

Each namespace belongs to a process of ours and goes with it, however that ends; the machine's own network is not
touched. Making them needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from warpbeam.errors import PlatformError

INTERFACE: Final = "eth0"
PROGRAMS: Final = ("ip", "unshare", "nsenter")
_STEP_S: Final = 20.0


@dataclass(frozen=True)
class DrillNode:
    """One namespace.

    Args:
        pid: of the process that holds it.
        address: of its interface `eth0`.
    """

    name: str
    pid: int
    address: str

    @property
    def path(self) -> str:
        """What `setns` enters."""
        return f"/proc/{self.pid}/ns/net"

    def command(self, *words: str) -> list[str]:
        """A command that runs in it."""
        return ["nsenter", f"--net={self.path}", "--", *words]


class Namespaces:
    """A context manager: `count` nodes, `node-0` and so on.

    Raises PlatformError where they cannot be made.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> list[DrillNode]:
        try:
            return self._make()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the holders, and with them their namespaces."""
        for holder in self._holders:
            holder.kill()
            holder.wait()
        self._holders.clear()

    def _make(self) -> list[DrillNode]:
        if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
            raise _cannot(f"{', '.join(missing)} not found")
        hub = self._hold()
        _run(_inside(hub, "ip", "link", "add", "hub", "type", "bridge"))
        _run(_inside(hub, "ip", "link", "set", "hub", "up"))
        found = []
        for number in range(self._count):
            pid, address = self._hold(), f"10.87.{number // 250}.{number % 250 + 1}"
            port = f"port{number}"
            _run(_inside(hub, "ip", "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", str(pid)))
            _run(_inside(hub, "ip", "link", "set", port, "master", "hub", "up"))
            _run(_inside(pid, "ip", "address", "add", f"{address}/16", "dev", INTERFACE))
            _run(_inside(pid, "ip", "link", "set", INTERFACE, "up"))
            _run(_inside(pid, "ip", "link", "set", "lo", "up"))
            found.append(DrillNode(f"node-{number}", pid, address))
        return found

    def _hold(self) -> int:
        """A process with a network of its own; it ends when we do, since its input ends then."""
        holder = subprocess.Popen(
            ["unshare", "--net", "--", "sh", "-c", "echo; exec cat >/dev/null"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stderr is not None
        if not holder.stdout.readline():
            holder.wait(_STEP_S)
            raise _cannot(holder.stderr.read().decode(errors="replace").strip() or "unshare failed")
        return holder.pid


def _inside(pid: int, *words: str) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *words]


def _run(command: list[str]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_STEP_S)
        if done.returncode == 0:
            return
        raise _cannot(f"{' '.join(command[3:])}: {done.stderr.strip()}")
    raise _cannot(f"{' '.join(command[3:])}: no answer")


def _cannot(why: str) -> PlatformError:
    return PlatformError(
        "network namespaces cannot be made here",
        why=why,
        fix="run it as root, or without --nodes: all ranks are then on one node",
        reason="no_namespaces",
    )


def allowed() -> bool:
    """Whether it is worth trying: Linux, and root."""
    return Path("/proc/self/ns/net").exists() and os.geteuid() == 0
