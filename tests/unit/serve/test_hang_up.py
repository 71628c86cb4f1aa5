"""A client that goes, and an engine that dies, in the middle of an answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.unit.serve.api import Api, error, run
from tests.unit.serve.scripted_engine import ScriptedEngine
from warpbeam.serve.engine import EngineDead, TokenChunk


class Connection:
    """One HTTP request, held in both hands: what the server sent, and when the client goes."""

    def __init__(self, api: Api, path: str, body: dict[str, Any]) -> None:
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._received.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [],
            "client": ("test", 1),
            "server": ("test", 80),
        }
        self.task = asyncio.create_task(api.app(scope, self._received.get, self.sent.put))

    def hang_up(self) -> None:
        self._received.put_nowait({"type": "http.disconnect"})


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_hangs_up_frees_its_slots(stream: bool, n: int) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine(held=True))
        api.says("hello world")
        connection = Connection(api, "/v1/chat/completions", {**CHAT, "stream": stream, "n": n})
        while len(api.engine.running) < n:
            await asyncio.sleep(0)
        api.engine.step(n)
        if stream:
            assert (await connection.sent.get())["type"] == "http.response.start"
        connection.hang_up()
        await asyncio.wait_for(connection.task, 5)
        assert not api.engine.running
        assert len(api.engine.closed) == n

    run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancelled_request_frees_its_slot(stream: bool) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine(held=True))
        api.says("hello world")
        connection = Connection(api, "/v1/chat/completions", {**CHAT, "stream": stream})
        while not api.engine.running:
            await asyncio.sleep(0)
        connection.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connection.task
        assert not api.engine.running

    run(scenario())


def test_a_client_that_goes_while_sending_is_no_error() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        connection = Connection(api, "/v1/chat/completions", CHAT)
        await connection._received.get()
        connection.hang_up()
        await asyncio.wait_for(connection.task, 5)
        assert not api.engine.asked

    run(scenario())


def test_an_engine_that_dies_in_mid_stream_ends_it_with_an_error() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.engine.script = [TokenChunk(tuple(api.ids("hello"))), EngineDead("killed")]
        response = await api.chat(stream=True)
        *_, text, last, rest = response.text.split("\n\n")
        assert "hello" in text
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_unavailable"
        assert rest == "", "no [DONE]"

    run(scenario())


def test_an_engine_that_dies_before_a_whole_answer_is_503() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.engine.script = [TokenChunk(tuple(api.ids("hello"))), EngineDead("killed")]
        response = await api.chat(n=2)
        assert response.status_code == 503
        assert error(response)["code"] == "engine_unavailable"
        assert not api.engine.running

    run(scenario())


def test_our_own_failure_is_500_without_its_details() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.engine.script = [None]  # type: ignore[list-item]
        response = await api.chat()
        assert response.status_code == 500
        assert "NoneType" not in error(response)["message"]
        assert error(response)["type"] == "server_error"

    run(scenario())


def test_events_that_come_close_together_are_sent_together() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says("hello world " * 20)
        connection = Connection(api, "/v1/chat/completions", {**CHAT, "stream": True})
        await asyncio.wait_for(connection.task, 5)
        bodies = [message["body"] for message in taken(connection.sent) if message["type"] == "http.response.body"]
        assert b"".join(bodies).count(b"data: ") > 20
        assert len(bodies) < 10
        assert b"".join(bodies).endswith(b"data: [DONE]\n\n")

    run(scenario())


def taken(queue: asyncio.Queue[dict[str, Any]]) -> list[dict[str, Any]]:
    return [queue.get_nowait() for _ in range(queue.qsize())]
