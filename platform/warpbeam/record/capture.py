"""Keep everything a process writes to stdout and stderr, whatever writes it and however the process ends.

File descriptors 1 and 2 are pointed at a plain file, so C libraries and child processes are caught too, and a line
that was written survives `os._exit` and SIGKILL in the page cache. A thread ships the file to the record; after a
hard death, `ship_rest` ships what is left from any process of the same machine.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from warpbeam.record import keys
from warpbeam.record.shipper import LogShipper, log_path

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore

SHIP_S = 1.0
ROTATE_BYTES = 64 * 1024 * 1024
CLOSE_S = 10.0
DEATH_S = 5.0


class Capture:
    """`with Capture(store, team, run, attempt, "rank-0", directory): ...` ships what the block writes.

    Args:
        directory: a local folder for the files; `ship_rest` looks for them there.
        secrets: values that are replaced before anything leaves the machine.
        forward: also write to the original stdout, thinned like the record itself.
    """

    def __init__(
        self,
        store: ObjectStore,
        team: str,
        run: str,
        attempt: str,
        who: str,
        directory: Path,
        *,
        secrets: Iterable[str] = (),
        forward: bool = True,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._who = who
        self._generation = 0
        self._lock = _hold(directory, who)
        self._saved = (os.dup(1), os.dup(2))
        self._streams = (sys.stdout, sys.stderr)
        self._shipper = LogShipper(
            store,
            keys.stream(team, run, attempt, "logs", who),
            directory,
            who,
            secrets=secrets,
            forward=self._forward if forward else None,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"log-{who}", daemon=True)

    def __enter__(self) -> Capture:
        for stream in self._streams:
            stream.flush()
        self._redirect()
        sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptors back and ship the rest; the local files go once all of it is in the store."""
        for descriptor, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, descriptor)
        sys.stdout, sys.stderr = self._streams
        self._stop.set()
        self._thread.join()
        if _ship_all(self._shipper):
            self._shipper.clean()
        for saved in self._saved:
            os.close(saved)
        os.close(self._lock)

    def _redirect(self) -> None:
        path = log_path(self._directory, self._who, self._generation)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)

    def _loop(self) -> None:
        warned = False
        while not self._stop.wait(SHIP_S):
            try:
                self._shipper.turn()
                if os.fstat(1).st_size > ROTATE_BYTES:
                    self._generation += 1
                    self._redirect()
            except Exception as error:  # a lost network must not take the process's output down with it
                if not warned:
                    warned = True
                    self._forward(f"warpbeam: logs cannot be shipped now, trying again: {error}\n".encode())

    def _forward(self, data: bytes) -> None:
        os.write(self._saved[0], data)


def ship_rest(
    store: ObjectStore, team: str, run: str, attempt: str, directory: Path, secrets: Iterable[str] = ()
) -> list[str]:
    """Ship what processes of this attempt that are gone left in `directory`; returns whose logs were completed."""
    done = []
    for who in sorted({path.name.split(".")[0] for path in directory.glob("*.log")}):
        prefix = keys.stream(team, run, attempt, "logs", who)
        lock = _hold(directory, who)
        try:
            shipper = LogShipper(store, prefix, directory, who, secrets=secrets)
            if _ship_all(shipper):
                shipper.clean()
                done.append(who)
        finally:
            os.close(lock)
    return done


def _ship_all(shipper: LogShipper) -> bool:
    deadline = time.monotonic() + CLOSE_S
    while True:
        try:
            shipper.turn(final=True)
            return True
        except Exception as error:  # keep the local files and say where the record ends
            if time.monotonic() > deadline:
                print(f"warpbeam: the last log lines could not be shipped: {error}", file=sys.stderr)
                return False
            time.sleep(0.5)


def _hold(directory: Path, who: str) -> int:
    """Own this process's log files; waits a little for a dying owner."""
    lock = os.open(directory / f"{who}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + DEATH_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                return lock
            time.sleep(0.1)


def _unbuffered(descriptor: int) -> TextIO:
    """A text stream without any buffer: what was printed is in the file at once."""
    raw = os.fdopen(descriptor, "wb", buffering=0, closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
