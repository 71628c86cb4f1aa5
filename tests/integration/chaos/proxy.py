"""Between a run and its S3 server: sees every request, does something at one of them, or lets nothing through.

Bytes are forwarded as they come, so signatures hold and the server is the real one. A request's first line begins a
chunk, because no client here sends one before the last was answered.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

CHUNK: Final = 1 << 16
Moment = Literal["save", "commit", "retention", "restore"]
Side = Literal["request", "answer"]  # before the server has it; after it has done it, before the client knows
_LINE: Final = re.compile(rb"(GET|PUT|POST|DELETE|HEAD) (\S+) HTTP/1\.1\r\n")
_SHARD: Final = re.compile(rb"/checkpoints/.*\.safetensors")


@dataclass
class _Trap:
    moment: Moment
    side: Side
    act: Callable[[], None]
    sprung: threading.Event = field(default_factory=threading.Event)


class S3Proxy:
    """Use as a context manager. `upstream` is (host, port) of the server and may change while it is away."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._trap: _Trap | None = None
        self._committing = False
        self._stalled: set[Moment] = set()
        self._ready = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> S3Proxy:
        self._thread = threading.Thread(target=self._serve, name="s3-proxy", daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def at(self, moment: Moment, side: Side, act: Callable[[], None]) -> threading.Event:
        """Do `act` at the next request of this kind, which waits for it; the event says that it was done."""
        trap = _Trap(moment, side, act)
        self._trap = trap
        return trap.sprung

    def disarm(self) -> None:
        self._trap = None

    def cut(self) -> None:
        """Connections stay, nothing comes through: what a lost route looks like."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def stall(self, moment: Moment) -> None:
        """From now on requests of this kind get no answer; all others do."""
        self._stalled.add(moment)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._open.set()
        server = self._loop.run_until_complete(asyncio.start_server(self._client, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        for task in (left := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked: list[Moment | None] = [None]
        try:
            await self._open.wait()
            upstream_reader, upstream_writer = await asyncio.open_connection(*self.upstream)
        except OSError:
            writer.close()  # the server is away: so is what stands before it
            return
        await asyncio.gather(
            self._pump(reader, upstream_writer, asked, "request"),
            self._pump(upstream_reader, writer, asked, "answer"),
        )

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, asked: list[Moment | None], side: Side
    ) -> None:
        try:
            while data := await source.read(CHUNK):
                await self._open.wait()
                if side == "request" and (line := _LINE.match(data)):
                    asked[0] = self._moment(line[1], line[2])
                if asked[0] in self._stalled:
                    await asyncio.Event().wait()
                if asked[0] is not None:
                    await self._spring(asked[0], side)
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    async def _spring(self, moment: Moment, side: Side) -> None:
        trap = self._trap
        if trap is None or (trap.moment, trap.side) != (moment, side):
            return
        self._trap = None
        await self._loop.run_in_executor(None, trap.act)
        trap.sprung.set()
        await self._open.wait()

    def _moment(self, method: bytes, path: bytes) -> Moment | None:
        """Which step of the protocol a request belongs to; the log entry after a manifest is its commit."""
        if method in (b"PUT", b"POST") and _SHARD.search(path):
            return "save"
        if method == b"PUT" and path.endswith(b"/manifest.json"):
            self._committing = True
        elif method == b"PUT" and self._committing and b"/log/" in path:
            self._committing = False
            return "commit"
        elif method == b"DELETE" and b"/checkpoints/" in path:
            return "retention"
        elif method == b"GET" and _SHARD.search(path):
            return "restore"
        return None
