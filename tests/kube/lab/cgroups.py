"""Control groups (v1): one below our own in every hierarchy, named after the laboratory.

Everything that a laboratory starts is born in them and cannot leave, so that they know each of its processes, whoever
started it: that is how nothing is left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Hierarchy:
    """One mounted tree.

    Args:
        options: for `mount -t cgroup -o`: `memory`, `cpu,cpuacct`, `none,name=systemd`.
        folder: its name below /sys/fs/cgroup.
        own: the path of this process's group in it.
    """

    options: str
    folder: str
    own: str

    def group(self, name: str) -> Path:
        """The laboratory's group, as seen from outside of it."""
        return ROOT / self.folder / self.own.strip("/") / name


def hierarchies() -> list[Hierarchy]:
    """All trees of version 1 that this process is in."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":  # version 2
            continue
        named = controllers.startswith("name=")
        folder = controllers.removeprefix("name=")
        if (ROOT / folder).is_dir():
            found.append(Hierarchy(f"none,{controllers}" if named else controllers, folder, path))
    return found


def make(name: str) -> list[Path]:
    """A group of this name in every hierarchy. Keep the paths: from elsewhere they would be others."""
    made = []
    for tree in hierarchies():
        group = tree.group(name)
        group.mkdir(exist_ok=True)
        made.append(group)
        if "cpuset" in tree.options.split(","):  # a new group has no processor until it is given some
            for key in ("cpuset.cpus", "cpuset.mems"):
                (group / key).write_text((group.parent / key).read_text())
            (group / "cgroup.clone_children").write_text("1")
    return made


def join(groups: Sequence[Path]) -> None:
    """Move the calling process there; for a child between fork and exec."""
    for group in groups:
        (group / "cgroup.procs").write_text(str(os.getpid()))


def members(groups: Sequence[Path]) -> set[int]:
    """Every process in them, as pids of the machine."""
    found: set[int] = set()
    for group in groups:
        for path in (group, *_below(group)):
            with contextlib.suppress(OSError):
                found.update(map(int, (path / "cgroup.procs").read_text().split()))
    return found


def end(groups: Sequence[Path], patience_s: float = 20.0) -> None:
    """Kill every member, and remove the groups.

    Raises:
        RuntimeError: a process cannot be killed.
    """
    deadline = time.monotonic() + patience_s
    while pids := members(groups):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes do not end: {sorted(pids)}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for group in groups:
        for path in (*_below(group), group):
            _remove(path, deadline)


def _below(group: Path) -> list[Path]:
    """The deepest first."""
    return sorted((path for path in group.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))


def _remove(group: Path, deadline: float) -> None:
    """The kernel lets go of a group a moment after its last process."""
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
