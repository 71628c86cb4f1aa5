"""Server-sent events, and noticing that nobody reads any more.

Frameworks notice a client that hangs up only at the next send, if at all, and Ray Serve not for a response that is
still being computed; here both kinds of response watch for it, because an abandoned request holds an engine's slot.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import Response

from warpbeam.serve.guard import ClientGone, Receive, Scope, Send

ResultT = TypeVar("ResultT")

DONE = b"data: [DONE]\n\n"

GATHER_S = 0.05
"""After a send, what comes within this time goes out together: each send costs Ray Serve a third of a millisecond of
CPU time in two processes, which on a few cores is time for tokens. The opening and the first token are sent at once."""


class EventStream(Response):
    """A response of JSON events, ended by `[DONE]`; after an event with `error` it just ends.

    Args:
        events: closed when the client goes.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[dict[str, Any]]) -> None:
        self._events = events
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGone):
            await unless_client_goes(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        ready: asyncio.Queue[bytes | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._encode_all(ready))
            more, pause_s = True, 0.0
            while more:
                parts = [await ready.get()]
                while not ready.empty():
                    parts.append(ready.get_nowait())
                more = parts[-1] is not None
                await send({"type": "http.response.body", "body": b"".join(filter(None, parts)), "more_body": more})
                if more:
                    await asyncio.sleep(pause_s)
                    pause_s = GATHER_S

    async def _encode_all(self, ready: asyncio.Queue[bytes | None]) -> None:
        """Every event's bytes, then None."""
        last = DONE
        async with aclosing(self._events) as events:
            async for event in events:
                # ASCII only: many clients take U+2028, U+0085 and their like for ends of lines.
                text = json.dumps(event, separators=(",", ":"))
                ready.put_nowait(f"data: {text}\n\n".encode())
                if "error" in event:
                    last = b""
        ready.put_nowait(last)
        ready.put_nowait(None)


async def unless_client_goes(receive: Receive, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of `work`, which is cancelled when the client hangs up. Call after the body has been read.

    Raises:
        ClientGone: the client hung up first.
    """

    async def hang_up() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    watching = asyncio.create_task(hang_up())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
