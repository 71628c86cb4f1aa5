"""Bring one process's local log files into the record, exactly once, even after the process is gone.

The process writes to a plain file (`capture`), so nothing that reached a file descriptor is lost by `os._exit` or
SIGKILL. The shipper reads that file and writes numbered objects. Before it starts an object it notes in a small state
file at which byte of which log file that object begins; whoever carries on after a death writes the same object
again, longer, from the same byte. So lines are neither lost nor repeated.

A flood is thinned: a burst of `BURST_BYTES` passes whole, afterwards `RATE_BYTES_S`; what is passed over is counted
in a line of its own, and the newest lines always arrive.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from warpbeam.record.redact import Redactor
from warpbeam.record.stream import CHUNK_BYTES, chunk_key

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore

READ_BYTES = 1024 * 1024
BURST_BYTES = 64 * 1024 * 1024
RATE_BYTES_S = 512 * 1024


def log_path(directory: Path, who: str, generation: int = 0) -> Path:
    """The process's n-th log file; a new one is begun when one grows too large for the disk."""
    return directory / f"{who}.{generation:04d}.log"


class LogShipper:
    """Follows the log files of one process. One thread calls `turn`."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        directory: Path,
        who: str,
        *,
        secrets: Iterable[str] = (),
        forward: Callable[[bytes], None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._directory = directory
        self._who = who
        self._secrets = list(secrets)
        self._forward = forward
        self._now = now
        self._allowance = float(BURST_BYTES)
        self._refilled_at = now()
        self._state_path = directory / f"{who}.state.json"
        state = json.loads(self._state_path.read_text()) if self._state_path.exists() else {}
        self._generation: int = state.get("generation", 0)
        self._chunk: int = state.get("chunk", 0)
        self._offset: int = state.get("start", 0)
        self._content: bytes = state.get("notice", "").encode()
        self._noted = bool(state)
        self._redactor = Redactor(self._secrets)
        self._file: BinaryIO | None = None

    def turn(self, *, final: bool = False) -> None:
        """Ship what is new; `final`: also what a longer wait might have completed. The store's errors propagate."""
        while True:
            self._ship_file(final)
            following = log_path(self._directory, self._who, self._generation + 1)
            if not following.exists():
                return
            self._next_file()

    def clean(self) -> None:
        """Remove the local files once all is shipped."""
        if self._file:
            self._file.close()
            self._file = None
        for path in (*self._directory.glob(f"{self._who}.*.log"), self._state_path):
            path.unlink(missing_ok=True)

    def _ship_file(self, final: bool) -> None:
        if self._file is None:
            path = log_path(self._directory, self._who, self._generation)
            if not path.exists():
                return
            self._file = path.open("rb")
        self._thin(os.fstat(self._file.fileno()).st_size)
        while self._ship_piece(self._file, final):
            pass

    def _ship_piece(self, file: BinaryIO, final: bool) -> bool:
        """Ship up to one read's worth; False at the end of the file. Nothing advances unless the store took it."""
        file.seek(self._offset)
        data = file.read(READ_BYTES)
        at_end = len(data) < READ_BYTES
        held = self._redactor.held
        text = self._redactor.feed(data, final=final and at_end)
        if text:
            try:
                self._put(text, start=self._offset - len(held))
            except BaseException:
                self._redactor.held = held
                raise
        self._offset += len(data)
        self._allowance -= len(data)
        if self._forward and data:
            self._forward(data)
        return not at_end

    def _put(self, text: bytes, start: int) -> None:
        if not self._noted:
            self._note(start)
        elif self._content and len(self._content) + len(text) > CHUNK_BYTES:
            self._begin_chunk(start)
        self._store.put(chunk_key(self._prefix, self._chunk, "txt"), self._content + text)
        self._content += text

    def _begin_chunk(self, start: int, notice: str = "") -> None:
        self._chunk += 1
        self._content = notice.encode()
        self._note(start, notice)

    def _note(self, start: int, notice: str = "") -> None:
        state = {"generation": self._generation, "chunk": self._chunk, "start": start, "notice": notice}
        temporary = self._state_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(state))
        temporary.replace(self._state_path)
        self._noted = True

    def _thin(self, size: int) -> None:
        """Jump over the oldest part of a backlog that is beyond the allowance."""
        now = self._now()
        self._allowance = min(BURST_BYTES, self._allowance + (now - self._refilled_at) * RATE_BYTES_S)
        self._refilled_at = now
        backlog = size - self._offset
        if backlog <= max(self._allowance, READ_BYTES):
            return
        target = size - READ_BYTES
        lines = self._count_lines(self._offset, target)
        megabytes = (target - self._offset) / 1e6
        self._offset = target
        self._redactor = Redactor(self._secrets)
        self._begin_chunk(target, f"[warpbeam: {lines:,} lines ({megabytes:.0f} MB) left out here: too many at once]\n")

    def _count_lines(self, start: int, end: int) -> int:
        assert self._file is not None
        self._file.seek(start)
        lines, left = 0, end - start
        while left > 0 and (data := self._file.read(min(READ_BYTES, left))):
            lines += data.count(b"\n")
            left -= len(data)
        return lines

    def _next_file(self) -> None:
        finished = log_path(self._directory, self._who, self._generation)
        if self._file:
            self._file.close()
        self._file = None
        self._generation += 1
        self._offset = 0
        self._redactor = Redactor(self._secrets)
        self._begin_chunk(0)
        finished.unlink(missing_ok=True)
