"""Ranks as processes of this machine: `warpbeam preflight --local N`, on one node or on drill nodes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from warpbeam.preflight.crew import Answered, Died, Event, Failed, Joined
from warpbeam.preflight.measured import Rank
from warpbeam.preflight.namespaces import INTERFACE, DrillNode

END_S: Final = 10.0
LAST_WORDS: Final = 200


class LocalCrew:
    """Implements `Crew`.

    Args:
        nodes: namespaces that the ranks are spread over, in blocks; none: they meet over the loopback interface.
        environment: of the ranks, besides this process's own.

    Attributes:
        folder: what ranks print is in `rank-N.log` there until `close`.
    """

    def __init__(
        self, ranks: int, nodes: Sequence[DrillNode] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self.size = ranks
        self._nodes, self._environment = tuple(nodes), dict(environment or {})
        self.folder = Path(tempfile.mkdtemp(prefix="wbpf-"))
        self._parent: subprocess.Popen[bytes] | None = None
        self._listener: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._buffers: dict[socket.socket, bytes] = {}
        self._wires: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._events: deque[Event] = deque()
        self._ended: set[int] = set()

    def start(self) -> None:
        """See Crew."""
        address = str(self.folder / "wire")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(self.size + 1)
        self._selector.register(self._listener, selectors.EVENT_READ)
        with (self.folder / "parent.log").open("wb") as log:
            self._parent = subprocess.Popen(
                [sys.executable, "-m", "warpbeam.preflight.local_ranks", address],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        assert self._parent.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: `next` says so
            self._parent.stdin.write(json.dumps([self._spec(rank) for rank in range(self.size)]).encode() + b"\n")
            self._parent.stdin.close()

    def send(self, rank: int, order: dict[str, Any]) -> None:
        """See Crew. A rank that is gone is heard of by `next`."""
        with contextlib.suppress(OSError):
            self._wires[rank].sendall(json.dumps(order).encode() + b"\n")

    def next(self, timeout_s: float) -> Event | None:
        """See Crew."""
        if not self._events:
            for key, _ in self._selector.select(timeout_s):
                assert isinstance(key.fileobj, socket.socket)
                self._accept() if key.fileobj is self._listener else self._read(key.fileobj)
            self._look_at_parent()
        return self._events.popleft() if self._events else None

    def state_of(self, rank: int) -> str:
        """See Crew: the kernel's word on the process."""
        try:
            process = psutil.Process(self._pids[rank])
            if process.status() == psutil.STATUS_STOPPED:
                return f"its process {process.pid} is stopped (SIGSTOP)"
            return f"its process {process.pid} is alive: {process.status()}"
        except (KeyError, psutil.Error):
            return ""

    def close(self) -> None:
        """See Crew."""
        if self._parent is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._parent.pid, signal.SIGKILL)
            self._parent.wait(END_S)
        for wire in [*self._buffers]:
            wire.close()
        if self._listener is not None:
            self._listener.close()
        self._selector.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _spec(self, rank: int) -> dict[str, Any]:
        per_node = -(-self.size // max(1, len(self._nodes)))
        node = self._nodes[rank // per_node] if self._nodes else None
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
        interface = (
            INTERFACE if node else os.environ.get("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        )
        return {
            "rank": rank,
            "address": node.address if node else "127.0.0.1",
            "namespace": node.path if node else "",
            "threads": max(1, cores // self.size),
            "log": str(self.folder / f"rank-{rank}.log"),
            "env": {
                "LOCAL_RANK": str(rank % per_node),
                "GLOO_SOCKET_IFNAME": interface,
                "NCCL_SOCKET_IFNAME": interface if node else os.environ.get("NCCL_SOCKET_IFNAME", interface),
            },
        }

    def _accept(self) -> None:
        assert self._listener is not None
        wire, _ = self._listener.accept()
        self._buffers[wire] = b""
        self._selector.register(wire, selectors.EVENT_READ)

    def _read(self, wire: socket.socket) -> None:
        try:
            data = wire.recv(1 << 20)
        except OSError:
            data = b""
        if not data:  # how it ended is told by its parent
            self._selector.unregister(wire)
            return
        *lines, self._buffers[wire] = (self._buffers[wire] + data).split(b"\n")
        for line in lines:
            self._hear(wire, json.loads(line))

    def _hear(self, wire: socket.socket, said: dict[str, Any]) -> None:
        if "joined" in said:
            self._welcome(wire, said["joined"])
        elif "died" in said:
            self._bury(int(said["died"]), str(said["what"]))
        elif "error" in said:
            self._events.append(Failed(int(said["rank"]), int(said["id"]), str(said["error"])))
        else:
            self._events.append(Answered(int(said["rank"]), int(said["id"]), said["value"]))

    def _welcome(self, wire: socket.socket, who: dict[str, Any]) -> None:
        rank = int(who["rank"])
        per_node = -(-self.size // max(1, len(self._nodes)))
        node = self._nodes[rank // per_node].name if self._nodes else socket.gethostname()
        self._wires[rank], self._pids[rank] = wire, int(who["pid"])
        self._events.append(Joined(Rank(node=node, **who)))

    def _bury(self, rank: int, how: str) -> None:
        if rank not in self._ended:
            self._ended.add(rank)
            words = _tail(self.folder / f"rank-{rank}.log")
            self._events.append(Died(rank, f"{how}: {words}" if words else how))

    def _look_at_parent(self) -> None:
        if self._parent is None or self._events or (code := self._parent.poll()) is None:
            return
        words = _tail(self.folder / "parent.log")
        for rank in range(self.size):
            self._bury(rank, f"the process that starts ranks ended with {code}" + (f": {words}" if words else ""))


def _tail(path: Path) -> str:
    """The last line that says something."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][-LAST_WORDS:] if lines else ""
    return ""
