"""Local files written so that they are whole or absent, and disk errors said in words.

Downloads, local stores and state files all need both.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from warpbeam.errors import DiskFull, InfraError, PlatformError, WarpbeamError

TEMP_PREFIX = ".warpbeam-tmp-"
"""Names that begin so are half-written files: never listed, safe to delete when nothing runs."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors about `path` into ours: disk full, no permission, others."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from error


def disk_error(error: OSError, path: Path) -> WarpbeamError:
    """What a system error about `path` means for a person."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"disk full: {path}",
            why=f"{error.strerror}; {_free_space(path)}",
            fix=f"free space on the disk of {path.parent}, or use a larger one: TMPDIR and WARPBEAM_HOME say where "
            "temporary files and this machine's own server are, the pool's `storage` where runs are kept",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PlatformError(
            f"no permission: {path}",
            why=error.strerror or "",
            fix="give this user the right to it, or choose another folder",
            reason="no_permission",
        )
    return InfraError(f"cannot use {path}", why=str(error), reason="disk_error")


def temp_beside(path: Path) -> Path:
    """A fresh name in the same folder (so that a rename is atomic), short whatever the target's name."""
    return path.parent / f"{TEMP_PREFIX}{secrets.token_hex(8)}"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; when the block ends well it becomes `path` at once, else it is removed."""
    temp = temp_beside(path)
    try:
        yield temp
        temp.replace(path)
    finally:
        temp.unlink(missing_ok=True)


def write_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write bytes to a new file and force them to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write the whole file; readers see the old or the new one."""
    with replacing(path) as temp:
        write_file(temp, data, mode=mode)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force a rename or a new name to the disk, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free_space(path: Path) -> str:
    for folder in path.parents:
        if folder.is_dir():
            usage = shutil.disk_usage(folder)
            left, total = usage.free / 2**20, usage.total / 2**20
            return f"{left:.0f} MiB of {total:.0f} MiB are free now that the unfinished file is gone"
    return "free space unknown"
