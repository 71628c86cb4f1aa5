"""Fetch something once per node: the first process to ask does it, the others on the machine wait and share.

Used for checkpoint files and model folders. The lock is an flock, so it dies with its holder; the result appears by a
rename, so it is whole or absent.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

from warpbeam.storage.disk import disk_errors


def fetch_once(folder: Path, name: str, fetch: Callable[[Path], None]) -> Path:
    """`folder/name`, made by `fetch(temporary path)` if it is not there yet. `fetch` may make a file or a folder."""
    target = folder / name
    if target.exists():
        return target
    with disk_errors(target):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"{name}.lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        temp = folder / f"{name}.partial"
        _remove(temp)  # of a process that died; the lock says nobody else writes it
        try:
            fetch(temp)
            with disk_errors(target):
                temp.rename(target)
        finally:
            _remove(temp)
    return target


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
