"""Uploads in a process of their own, so that they never hold the interpreter in which training runs.

Threads can wait for a network beside a training loop, but between two system calls each needs the interpreter's lock,
thousands of times for one checkpoint; where the system takes the core away from a thread that holds it, the loop waits
too. So a rank's store sends its uploads to a child, started by the first of them, which reads the file that the rank
has written. It ends with its parent, however that ends.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from warpbeam.errors import InfraError, WarpbeamError
from warpbeam.precedence import standing_back
from warpbeam.storage.bandwidth import Bandwidth
from warpbeam.storage.patience import PatientStore
from warpbeam.storage.store import ObjectStore

POLL_S: Final = 0.2
CANCEL: Final = "cancel"


class _Child(NamedTuple):
    process: subprocess.Popen[bytes]
    line: Connection


class UploadsElsewhere(PatientStore):
    """A patient store whose uploads a child process carries out, one at a time; it waits there as patiently."""

    _child: _Child | None = None

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._lock = threading.Lock()

    def upload(
        self, path: Path, key: str, *, limit: Bandwidth | None = None, cancel: threading.Event | None = None
    ) -> None:
        """See ObjectStore. Raises InfraError (`upload_process`) when the child dies."""
        with self._lock:
            try:
                failure = self._ask((str(path), key, None if limit is None else limit.bytes_per_s), cancel)
            except (EOFError, OSError) as broken:
                self.close()
                raise InfraError(
                    f"the process that uploads for this rank ended while it sent {key}",
                    why="it was killed (as when memory runs out), or could not be started: see the log above",
                    reason="upload_process",
                ) from broken
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End the child; another upload starts another one."""
        if self._child is not None:
            self._child.line.close()
            self._child.process.kill()  # it would leave by itself; an error on its way must not wait for that
            self._child.process.wait()
            self._child = None

    def _ask(self, job: tuple[str, str, float | None], cancel: threading.Event | None) -> WarpbeamError | None:
        self._child = self._child or self._start()
        line = self._child.line
        line.send(job)
        told = False
        while not line.poll(POLL_S):
            if cancel is not None and cancel.is_set() and not told:
                told = True
                line.send(CANCEL)
        failure: WarpbeamError | None = line.recv()
        return failure

    def _start(self) -> _Child:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "warpbeam.storage.upload_process", str(theirs.fileno())]
            with standing_back():
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        line = Connection(ours.detach())
        line.send(self._store)
        return _Child(process, line)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_child", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


def main(descriptor: int) -> None:
    """The child: uploads what it is told to; leaves when the line to the parent breaks."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to a whole group: the last checkpoint is still to be sent
        signal.signal(number, signal.SIG_IGN)
    parent = Connection(descriptor)
    store = PatientStore(parent.recv())
    jobs: queue.SimpleQueue[tuple[str, str, float | None]] = queue.SimpleQueue()
    cancel = threading.Event()
    limits: dict[float, Bandwidth] = {}

    def listen() -> None:
        while True:
            try:
                word = parent.recv()
            except (EOFError, OSError):
                os._exit(0)
            cancel.set() if word == CANCEL else jobs.put(word)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        path, key, rate = jobs.get()
        limit = None if rate is None else limits.setdefault(rate, Bandwidth(rate))
        parent.send(_failure(store, Path(path), key, limit, cancel))
        cancel.clear()


def _failure(
    store: PatientStore, path: Path, key: str, limit: Bandwidth | None, cancel: threading.Event
) -> WarpbeamError | None:
    try:
        store.upload(path, key, limit=limit, cancel=cancel)
    except WarpbeamError as error:
        return error
    except Exception as error:
        return InfraError(f"{key} could not be uploaded", why=f"{type(error).__name__}: {error}", reason="store_failed")
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
