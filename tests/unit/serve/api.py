"""The HTTP side over a scripted engine, called in process: no sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.unit.serve.scripted_engine import ScriptedEngine
from tests.unit.serve.tokenizers_for_tests import CHATML, byte_level
from warpbeam.serve.model_folder import ModelFolder, SamplingDefaults
from warpbeam.serve.openai_api import build_asgi_app
from warpbeam.serve.service import Service

ResultT = TypeVar("ResultT")
VOCABULARY = 384


def folder(chat_template: str | None = CHATML, **changes: Any) -> ModelFolder:
    tokenizer = byte_level(chat_template)
    fields: dict[str, Any] = {
        "path": Path("/nowhere"),
        "tokenizer": tokenizer,
        "end_ids": (tokenizer.eos_token_id,),
        "max_positions": 256,
        "vocabulary": VOCABULARY,
        "defaults": SamplingDefaults(),
        "notes": (),
    }
    return ModelFolder(**{**fields, **changes})


class Api:
    """A server and its client."""

    def __init__(self, engine: ScriptedEngine, model: ModelFolder | None = None, token: str | None = None) -> None:
        self.engine = engine
        self.folder = model or folder()
        self.app = build_asgi_app(Service("tiny", self.folder, engine), token)
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app, raise_app_exceptions=False), base_url="http://test"
        )

    def ids(self, text: str) -> list[int]:
        return list(self.folder.tokenizer(text).input_ids)

    def says(self, text: str, **options: Any) -> None:
        self.engine.say(self.ids(text), end_id=self.folder.end_ids[0], **options)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self._http.get(path, **options)

    async def chat(self, content: str = "hello", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        return await self.post("/v1/chat/completions", {"model": "tiny", "messages": messages, **fields})

    async def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"model": "tiny", "prompt": prompt, **fields})

    async def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        if isinstance(body, bytes):
            return await self._http.post(path, content=body, **options)
        return await self._http.post(path, json=body, **options)


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    return asyncio.run(work)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream that ended as it should."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def error(response: httpx.Response) -> dict[str, Any]:
    """The error of a refused request, in OpenAI's form."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    found: dict[str, Any] = body["error"]
    return found
