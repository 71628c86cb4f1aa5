"""A folder as an object store: for tests, for one machine without a server, and for shared file systems.

Same promises as S3: a write is whole or absent (temporary name, then rename), create-if-absent has one winner (a hard
link, which fails when the name exists), and an empty folder does not exist.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from warpbeam.errors import InfraError, PlatformError, UserError
from warpbeam.storage.bandwidth import Bandwidth, wait_turn
from warpbeam.storage.disk import (
    TEMP_PREFIX,
    disk_error,
    disk_errors,
    replacing,
    sync_folder,
    temp_beside,
    write_file,
)
from warpbeam.storage.keys import check_key, check_prefix
from warpbeam.storage.parts import cut
from warpbeam.storage.store import Names, ObjectInfo, ObjectMissing, TransferCancelled, Unfinished

T = TypeVar("T")
Entries = list[os.DirEntry[str]]
_BLOCK_BYTES = 256 << 10


class LocalStore:
    """Objects are the files below `root`, which is made by the first write."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))
        self.uri = self.root.as_uri()

    def __repr__(self) -> str:
        return f"LocalStore({self.uri!r})"

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See ObjectStore."""
        if start < 0 or (length is not None and length < 0):
            raise ValueError(f"get({key!r}): start and length must not be negative, got {start} and {length}")
        with self._opened(key) as file, disk_errors(self._path(key)):
            file.seek(start)
            return file.read() if length is None else file.read(length)

    def put(self, key: str, data: bytes) -> None:
        """See ObjectStore."""

        def write(path: Path) -> None:
            with replacing(path) as temp:
                write_file(temp, data)
            sync_folder(path.parent)

        self._write(key, write)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See ObjectStore."""

        def create(path: Path) -> bool:
            temp = temp_beside(path)
            try:
                write_file(temp, data)
                created = _link(temp, path)
            finally:
                temp.unlink(missing_ok=True)
            sync_folder(path.parent)
            return created

        return self._write(key, create)

    def upload(
        self, path: Path, key: str, *, limit: Bandwidth | None = None, cancel: threading.Event | None = None
    ) -> None:
        """See ObjectStore."""

        def copy(target: Path) -> None:
            with path.open("rb") as source, replacing(target) as temp:
                size = os.fstat(source.fileno()).st_size
                with temp.open("xb") as file:
                    for part in cut(size):
                        if not wait_turn(part.size, limit, cancel):
                            raise TransferCancelled(f"storing {path} under {key} was given up")
                        _copy(source, file, part.size)
                    file.flush()
                    os.fsync(file.fileno())
                stored, now = temp.stat().st_size, os.fstat(source.fileno()).st_size
                if not size == stored == now:
                    raise InfraError(
                        f"{path} changed while it was stored under {key}",
                        why=f"{size} bytes before, {stored} bytes stored, {now} bytes now",
                        fix="leave the file alone while it is stored, and run the command again",
                        reason="size_mismatch",
                    )
            sync_folder(target.parent)

        with disk_errors(path):
            path.stat()  # a missing source is not a missing folder of the store, which `_write` would make
        self._write(key, copy)

    def download(self, key: str, path: Path, *, hashed: bool = False) -> str:
        """See ObjectStore."""
        digest = hashlib.sha256() if hashed else None
        with self._opened(key) as source, disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temp, temp.open("xb") as target:
                while block := source.read(_BLOCK_BYTES):
                    target.write(block)
                    if digest is not None:
                        digest.update(block)
        return "" if digest is None else digest.hexdigest()

    def head(self, key: str) -> ObjectInfo | None:
        """See ObjectStore."""
        path = self._path(key)
        with disk_errors(path):
            try:
                return _info(key, path.stat()) if path.is_file() else None
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        folder, _, beginning = check_prefix(prefix).rpartition("/")
        yield from self._walk(folder, beginning)

    def list_dirs(self, prefix: str) -> Names:
        """See ObjectStore."""
        folder = check_prefix(prefix).removesuffix("/")
        names = (entry.name for entry in self._entries(folder) if entry.is_dir())
        return sorted(name for name in names if next(self._walk(_below(folder, name), ""), None) is not None)

    def delete(self, key: str) -> None:
        """See ObjectStore."""
        path = self._path(key)
        with disk_errors(path):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return
        for folder in path.parents:
            if folder == self.root:
                break
            try:
                folder.rmdir()
            except OSError:  # something else is in it, or somebody else was faster
                break

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        """See ObjectStore. Temporary files, of a process that died or is at work."""
        root = self.root / check_prefix(prefix).removesuffix("/")
        with disk_errors(root):
            for path in root.rglob(f"{TEMP_PREFIX}*"):
                with contextlib.suppress(FileNotFoundError):  # it has become an object meanwhile
                    key = path.relative_to(self.root).as_posix()
                    yield Unfinished(key, path.name, max(0.0, time.time() - path.stat().st_mtime))

    def discard(self, left: Unfinished) -> None:
        """See ObjectStore."""
        self.delete(left.key)

    def open_stream(self, key: str) -> BinaryIO:
        """See ObjectStore."""
        return self._opened(key)

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _opened(self, key: str) -> BinaryIO:
        path = self._path(key)
        try:
            return path.open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ObjectMissing(f"there is no {path}") from error
        except OSError as error:
            raise disk_error(error, path) from error

    def _write(self, key: str, write: Callable[[Path], T]) -> T:
        """Run `write` on the key's path, with its folders made; again when a deletion removes them meanwhile."""
        path = self._path(key)
        for attempt in range(10):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                return write(path)
            except FileNotFoundError as error:
                if attempt == 9:
                    raise disk_error(error, path) from error
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise UserError(
                    f"cannot store {key!r} in {self.uri}",
                    why="a key cannot also be another key's folder in a local store",
                    reason="bad_key",
                ) from error
            except OSError as error:
                raise disk_error(error, path) from error
        raise AssertionError("unreachable")

    def _entries(self, folder: str) -> Entries:
        path = self.root / folder if folder else self.root
        with disk_errors(path):
            try:
                with os.scandir(path) as entries:
                    return [entry for entry in entries if not entry.name.startswith(TEMP_PREFIX)]
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _walk(self, folder: str, beginning: str) -> Iterator[ObjectInfo]:
        """Files below `folder` whose next segment begins so, in the order of their whole keys."""
        found = [(entry.name + "/" if entry.is_dir() else entry.name, entry) for entry in self._entries(folder)]
        for name, entry in sorted((pair for pair in found if pair[0].startswith(beginning)), key=lambda pair: pair[0]):
            key = _below(folder, entry.name)
            if name.endswith("/"):
                if entry.is_symlink() and self.root.joinpath(folder).is_relative_to(os.path.realpath(entry.path)):
                    continue  # a link to a folder above: for ever
                yield from self._walk(key, "")
            elif entry.is_file():
                try:
                    yield _info(key, entry.stat())
                except FileNotFoundError:  # deleted since the folder was read
                    continue


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    """Copy the next `size` bytes, or what is left of them."""
    while size and (block := source.read(min(_BLOCK_BYTES, size))):
        target.write(block)
        size -= len(block)


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _info(key: str, stat: os.stat_result) -> ObjectInfo:
    etag = f"{stat.st_mtime_ns:x}-{stat.st_size:x}"
    return ObjectInfo(key, stat.st_size, etag, max(0.0, time.time() - stat.st_mtime))


def _link(temp: Path, path: Path) -> bool:
    """Give the finished file its name; False when the name is taken."""
    try:
        os.link(temp, path)
    except FileExistsError:
        if path.is_dir():
            raise
        # NFS repeats a request whose answer was lost: two names mean that the first one made ours.
        return temp.stat().st_nlink == 2
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        raise PlatformError(
            f"the file system of {path.parent} has no hard links",
            why="creating a file only if it is absent, whole and with one winner, needs them",
            fix="put the store on another file system (ext4, xfs, NFS), or use s3",
            reason="no_conditional_put",
        ) from error
    return True
