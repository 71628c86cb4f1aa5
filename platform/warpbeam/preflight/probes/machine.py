"""What a rank finds where it was started: versions, limits, /dev/shm, names, memory. Nothing is changed."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from warpbeam.versions import installed_versions

SHM: Final = Path("/dev/shm")
SHM_TRIED: Final = 16 << 20
"""Written there once: a mount may be full, or read-only, whatever its size says."""
NAME_S: Final = 10.0


def facts(names: Sequence[str]) -> dict[str, Any]:
    """Everything, as JSON. `names`: hosts that a job would look up."""
    free, error = _shm()
    return {
        "versions": _versions(),
        "open_files": _limit(resource.RLIMIT_NOFILE),
        "memlock_bytes": _limit(resource.RLIMIT_MEMLOCK),
        "shm_free_bytes": free,
        "shm_error": error,
        "infiniband": sorted(path.name for path in _listed(Path("/sys/class/infiniband"))),
        "names": {name: _look_up(name) for name in dict.fromkeys([socket.gethostname(), *names])},
        "free_bytes": free_memory(),
        "cores": cores(),
    }


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def free_memory() -> int:
    """Bytes that new buffers may take: of the machine, or of this process's control group where that is less."""
    free = int(psutil.virtual_memory().available)
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        for folder in _groups("memory"):
            try:
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
            except (OSError, ValueError):  # no such limit, or the word `max`
                continue
            free = min(free, max(left, 0))
    return free


def cpu_limit() -> float | None:
    """Cores that the control group of this process allows it; None where there is no limit."""
    for folder in _groups("cpu"):
        try:
            if (folder / "cpu.max").exists():  # version 2: `max 100000`, `20000 100000`
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
            if quota not in ("max", "-1"):
                return int(quota) / int(period)
        except (OSError, ValueError):
            continue
    return None


def _groups(controller: str) -> list[Path]:
    """Folders of this process's control group: its own, and the root as a container sees it."""
    root = Path("/sys/fs/cgroup")
    found: list[Path] = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        below = path.strip("/")
        if not controllers:
            found += [root / below, root]
        elif controller in controllers.split(","):
            found += [root / folder / below for folder in (controllers, controller)] + [root / controller]
    return list(dict.fromkeys(folder for folder in found if folder.is_dir()))


def _versions() -> dict[str, str]:
    found = installed_versions()
    import torch

    found["torch"] = torch.__version__  # what is imported, whatever the package's metadata says
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def _limit(which: int) -> int | None:
    """None: no limit."""
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _shm() -> tuple[int, str]:
    """(free bytes, why nothing can be written there)."""
    try:
        stat = os.statvfs(SHM)
        free = stat.f_bavail * stat.f_frsize
        with tempfile.TemporaryFile(dir=SHM) as file:
            os.posix_fallocate(file.fileno(), 0, min(SHM_TRIED, max(free // 2, 1)))
    except OSError as error:
        return 0, error.strerror or str(error)
    return free, ""


def _look_up(name: str) -> dict[str, Any]:
    """How long it took, and why it was not found. The resolver itself may take a minute: it gets less."""
    answer: dict[str, Any] = {"seconds": 0.0, "error": f"no answer in {NAME_S:.0f} s"}

    def ask() -> None:
        try:
            socket.getaddrinfo(name, None)
            answer["error"] = ""
        except OSError as error:
            answer["error"] = error.strerror or str(error)

    began = time.monotonic()
    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    asker.join(NAME_S)
    return answer | {"seconds": time.monotonic() - began}


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
