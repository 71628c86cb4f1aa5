"""A real deployment on a real Ray Serve, asked by the official client: one server for the whole file.

The model has learnt one answer (serve_model.py), so that texts, endings and stop sequences can be predicted.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import torch
from openai import AsyncOpenAI, OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.integration.serve_model import ANSWER, CONTEXT, QUESTION, build_model
from warpbeam.data.chat import encode_chat
from warpbeam.errors import UserError
from warpbeam.serve.client import ask, stream
from warpbeam.serve.deploy import Deployment, deploy, deployments, find_deployment, stop_serving, undeploy
from warpbeam.serve.local_state import running_state

MESSAGES = [{"role": "user", "content": QUESTION}]
TOKEN = "test-token-0123456789"
CLIENTS = 16


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


@pytest.fixture(scope="module")
def served(home: Path, model: Path, taken_port: int) -> Iterator[Deployment]:
    deployment = deploy(str(model), name="tiny", port=taken_port, token=TOKEN, home=home, engine={"threads": 1})
    try:
        yield deployment
    finally:
        stop_serving(home)


@pytest.fixture(scope="module")
def client(served: Deployment) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key=TOKEN, max_retries=0)


@pytest.fixture(scope="module")
def http(served: Deployment) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
        yield client


def wait_until(happened: Callable[[], bool], timeout_s: float) -> float:
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < timeout_s, "it did not happen in time"
        time.sleep(0.05)
    return time.monotonic() - began


def test_another_port_is_taken_and_said(served: Deployment, taken_port: int) -> None:
    assert f"port {taken_port} is in use" in served.notes[0]
    assert str(taken_port) not in served.url


def test_the_answer_ends_by_itself_streaming_and_not(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=200)
    assert whole.choices[0].message.content == ANSWER
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            temperature=0,
            max_tokens=200,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(text) == ANSWER
    assert len([piece for piece in text if piece]) > 5, "it comes in pieces"
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_greedy_text_is_that_of_generate(client: OpenAI, model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    reference = AutoModelForCausalLM.from_pretrained(model).eval()
    prompt, _ = encode_chat(tokenizer, MESSAGES, add_generation_prompt=True)
    said = tokenizer(ANSWER).input_ids
    for tokens in (0, 1, 7):
        ids = [*prompt.tolist(), *said[:tokens]]
        with torch.no_grad():
            expected = reference.generate(torch.tensor([ids]), max_new_tokens=60, do_sample=False)[0, len(ids) :]
        completion = client.completions.create(model="tiny", prompt=ids, max_tokens=60, temperature=0)
        assert completion.choices[0].text == tokenizer.decode(expected, skip_special_tokens=True)
        assert completion.choices[0].text == tokenizer.decode(said[tokens:])
        assert completion.usage is not None
        assert completion.usage.completion_tokens == len(expected)


def test_many_clients_stream_at_once(served: Deployment) -> None:
    async def one(client: AsyncOpenAI) -> tuple[str, str | None]:
        pieces = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, temperature=0, max_tokens=100, stream=True
        )
        text, reason = "", None
        async for chunk in pieces:
            text += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
        return text, reason

    async def all_clients() -> list[tuple[str, str | None]]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key=TOKEN, max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(CLIENTS)))

    assert asyncio.run(all_clients()) == [(ANSWER, "stop")] * CLIENTS


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["rivers, south"], "north 7 "),
        (["s 9 l", "th 9 l"], "north 7 rivers, sou"),
        (["zzz", "lak"], "north 7 rivers, south 9 "),
        (["🌊 e"], "north 7 rivers, south 9 lakes "),
        (["rivers, sooth"], ANSWER),
    ],
)
def test_stop_sequences(client: OpenAI, stop: list[str], expected: str) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "stop": stop}
    whole = client.chat.completions.create(**options)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (expected, "stop")
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_hot_sampling_over_padding_rows_never_fails(served: Deployment) -> None:
    async def one(client: AsyncOpenAI, seed: int) -> tuple[str, int]:
        text, tokens = "", 0
        async for chunk in await client.completions.create(
            model="tiny",
            prompt="n",
            temperature=2,
            seed=seed % 25,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        ):
            text += "".join(choice.text for choice in chunk.choices)
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        return text, tokens

    async def fifty() -> list[tuple[str, int]]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key=TOKEN, max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed) for seed in range(50)))

    answers = asyncio.run(fifty())
    assert all(0 < tokens <= 30 for _, tokens in answers)
    assert answers[:25] == answers[25:], "a seed repeats, whatever runs beside it"
    assert len(set(answers)) > 15


@pytest.mark.parametrize("streamed", [True, False])
def test_limits(http: httpx.Client, streamed: bool) -> None:
    def post(fields: dict[str, Any]) -> httpx.Response:
        return http.post("/v1/completions", json={"model": "tiny", "stream": streamed, "max_tokens": 5, **fields})

    for tokens in (5000, CONTEXT):
        response = post({"prompt": [5] * tokens})
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
        assert str(CONTEXT) in error["message"]
        assert str(tokens) in error["message"]
    for bad in (0, -1):
        assert post({"prompt": "a", "max_tokens": bad}).status_code == 400
    assert post({"prompt": "a", "max_tokens": None}).status_code == 200
    assert post({"prompt": [5] * (CONTEXT - 6), "max_tokens": 100}).status_code == 200
    assert post({"prompt": "a", "stop": ["a", "b", "c", "d", "e"]}).status_code == 400
    assert post({"prompt": "a", "model": "unknown"}).status_code == 404


def test_bodies_that_are_no_request(http: httpx.Client) -> None:
    response = http.post("/v1/completions", content=b"x" * (20 * 2**20))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    for body in (b"{", b"", b"\xff", b'{"model": "tiny", "prompt": "\\ud83c"}'):
        response = http.post("/v1/chat/completions", content=body)
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_the_token(served: Deployment, home: Path) -> None:
    assert httpx.get(f"{served.url}/health").json()["status"] == "ok"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        response = httpx.post(f"{served.url}/v1/chat/completions", json={}, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0).models.list()
    assert served.token == TOKEN
    for file in (home / "serve").iterdir():
        if file.name.endswith(("token", ".json")):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
        if file.name != "tiny.token":
            assert TOKEN not in file.read_text("utf-8", errors="replace")


def test_the_clients_errors_are_the_official_ones(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="unknown", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[5] * 5000)
    assert caught.value.code == "context_length_exceeded"
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_hangs_up_frees_its_slots(http: httpx.Client, served: Deployment, streamed: bool) -> None:
    """Sixteen hot answers up to the context's end are seconds of work; the client stays for a part of the first."""
    body = {"model": "tiny", "prompt": "n", "n": 16, "max_tokens": CONTEXT, "temperature": 2, "stream": streamed}

    async def hang_up() -> None:
        async with httpx.AsyncClient(headers=http.headers, timeout=60) as client:
            asked = asyncio.create_task(client.post(f"{served.url}/v1/completions", json=body))
            while (await client.get(f"{served.url}/health")).json()["requests"] == 0:
                await asyncio.sleep(0.01)
            asked.cancel()
            await asyncio.wait([asked])

    asyncio.run(hang_up())
    wait_until(lambda: http.get("/health").json()["requests"] == 0, timeout_s=1)
    before = http.get("/health").json()["generated_tokens"]
    time.sleep(0.3)
    assert http.get("/health").json()["generated_tokens"] == before


def test_our_own_client(served: Deployment) -> None:
    reply = ask(served.url, MESSAGES, TOKEN, temperature=0)
    assert (reply.text, reply.finish_reason) == (ANSWER, "stop")
    assert "".join(stream(served.url, MESSAGES, TOKEN, temperature=0)) == ANSWER
    with pytest.raises(UserError, match="401"):
        ask(served.url, MESSAGES, "wrong-token")


def test_a_second_model_beside_the_first(served: Deployment, home: Path, model: Path, tmp_path: Path) -> None:
    """Under a route of its own, from a folder without a template: text works, chat says what is missing."""
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in model.iterdir():
        if file.name != "chat_template.jinja":
            (plain / file.name).write_bytes(file.read_bytes())
    second = deploy(str(plain), name="plain", port=0, home=home, engine={"threads": 1})
    assert second.url == f"{served.url}/plain"
    assert "no chat template" in second.notes[-1]
    client = OpenAI(base_url=f"{second.url}/v1", api_key="none", max_retries=0)
    assert client.completions.create(model="plain", prompt="north", max_tokens=3).choices[0].text is not None
    with pytest.raises(openai.BadRequestError, match="chat_template"):
        client.chat.completions.create(model="plain", messages=MESSAGES)
    assert httpx.get(f"{second.url}/health").status_code == 200
    assert [each.name for each in deployments(home)] == ["plain", "tiny"]
    assert undeploy("plain", home)
    assert httpx.get(f"{second.url}/health").status_code in (401, 404)
    assert find_deployment("tiny", home).url == served.url


def test_a_model_that_cannot_be_served_is_told_and_the_old_one_comes_back(
    served: Deployment, home: Path, model: Path, tmp_path: Path
) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1000])
    with pytest.raises(UserError, match="cut off"):
        deploy(str(tmp_path), name="tiny", port=0, home=home)
    weights.write_bytes(whole)
    with pytest.raises(UserError, match="too few to answer"):  # what only the replica can see
        deploy(str(tmp_path), name="tiny", port=0, home=home, engine={"cache_gib": 1e-6})
    assert [each.name for each in deployments(home)] == ["tiny"]
    assert ask(served.url, MESSAGES, TOKEN, temperature=0).text == ANSWER


def test_a_killed_replica_is_replaced(served: Deployment, home: Path) -> None:
    state = running_state(home)
    assert state is not None
    replicas = [
        child
        for child in psutil.Process(state.process.pid).children(recursive=True)
        if re.search("ServeReplica:tiny", " ".join(child.cmdline()))
    ]
    assert len(replicas) == 1
    os.kill(replicas[0].pid, signal.SIGKILL)

    def answers() -> bool:
        try:
            return ask(served.url, MESSAGES, TOKEN, temperature=0).text == ANSWER
        except Exception:
            return False

    wait_until(answers, timeout_s=60)


def test_stopping_ends_what_was_started_and_nothing_else(served: Deployment, home: Path) -> None:
    state = running_state(home)
    assert state is not None
    server = psutil.Process(state.process.pid)
    ours = [server, *server.children(recursive=True)]
    assert len(ours) > 5
    assert undeploy("tiny", home), "the last deployment takes the server with it"
    _, alive = psutil.wait_procs(ours, timeout=10)
    assert not alive
    assert not Path(state.short_dir).exists()
    assert deployments(home) == []
    assert not undeploy("tiny", home)
    assert not list((home / "serve").glob("*.token"))
