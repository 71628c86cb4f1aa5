"""Every mistake of a client is a 4xx in OpenAI's form, before a byte of an answer; never a 500."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.serve.api import VOCABULARY, Api, error, events, folder, run
from tests.unit.serve.scripted_engine import ScriptedEngine
from warpbeam.serve.guard import MAX_BODY_BYTES


def refused(route: str, fields: dict[str, Any]) -> dict[str, Any]:
    async def scenario() -> dict[str, Any]:
        api = Api(ScriptedEngine())
        api.says("x")
        call = api.chat if route == "chat" else api.complete
        response = await call(**fields)
        assert response.status_code == 400, response.text
        found = error(response)
        assert found["type"] == "invalid_request_error"
        assert not api.engine.asked, "nothing was computed"
        return found

    return run(scenario())


@pytest.mark.parametrize("route", ["chat", "completion"])
@pytest.mark.parametrize("stream", [True, False, None])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", [1]),
        ("top_p", 1.01),
        ("top_p", -1),
        ("top_k", 0),
        ("top_k", 2.5),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", "5"),
        ("n", 0),
        ("n", 33),
        ("seed", 2**63),
        ("seed", "x"),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", [1]),
        ("stop", {"a": 1}),
        ("logprobs", 5),
        ("logprobs", 0),
        ("stream_options", []),
        ("logit_bias", {"5": 10}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("echo", True),
        ("best_of", 3),
        ("suffix", "x"),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "json_object"}),
        ("repetition_penalty", 1.2),
        ("temprature", 1),
        ("priority", 1),
        ("stream_options", {"include_usage": "yes"}),
        ("stream_options", {"include_usages": True}),
    ],
)
def test_a_bad_field_is_named(route: str, stream: bool | None, field: str, value: Any) -> None:
    found = refused(route, {field: value, "stream": stream})
    assert field in (found["param"] or found["message"])
    assert field in found["message"] or (field == "stream_options" and "stream" in found["message"])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tokens", [256, 257, 5000])
def test_too_long_a_prompt_says_both_counts(stream: bool, tokens: int) -> None:
    found = refused("completion", {"prompt": [5] * tokens, "stream": stream, "max_tokens": 1})
    assert found["code"] == "context_length_exceeded"
    assert "256" in found["message"]
    assert str(tokens) in found["message"]


def test_too_long_a_conversation() -> None:
    found = refused("chat", {"content": "hello " * 300})
    assert (found["code"], found["param"]) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize(
    ("messages", "word"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (["hello"], "messages"),
        ([{"content": "hello"}], "role"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": None}], "content"),
        ([{"role": "wizard", "content": "hello"}], "wizard"),
        ([{"role": "user", "content": 5}], "content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "text"),
        ([{"role": "user", "content": "x", "audio": {"id": 1}}], "audio"),
        (None, "messages"),
    ],
)
def test_bad_messages(messages: Any, word: str) -> None:
    assert word in refused("chat", {"messages": messages})["message"]


@pytest.mark.parametrize(
    "prompt", [None, "", [], [[]], [[5], "a", []], 5, {"a": 1}, [5, "a"], [True], [-1], [VOCABULARY], [[2**40]]]
)
def test_bad_prompts(prompt: Any) -> None:
    assert "prompt" in refused("completion", {"prompt": prompt})["message"]


def test_stream_options_without_stream() -> None:
    assert "stream" in refused("chat", {"stream_options": {"include_usage": True}})["message"]


def test_two_different_limits() -> None:
    assert "max_completion_tokens" in refused("chat", {"max_tokens": 5, "max_completion_tokens": 6})["message"]


def test_too_many_answers() -> None:
    assert "33" in refused("completion", {"prompt": ["a"] * 33})["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
        b'{"model": "tiny", "prompt": "a", "temperature": Infinity}',
        b'{"model": "tiny", "prompt": "a", "temperature": 1e999}',
        b'{"model": "tiny", "prompt": "\\ud83c"}',
        b'{"model": "tiny", "prompt": "a", "stop": ["\\udf0a"]}',
        b'{"model": "tiny", "prompt": "\xff\xfe"}',
        b'{"a":' * 100_000,
        b'{"model": "tiny", "prompt": "a", "max_tokens": 1' + b"0" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_bodies_that_are_no_request(path: str, body: bytes) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        response = await api.post(path, body)
        assert response.status_code == 400, response.text
        assert error(response)["type"] == "invalid_request_error"

    run(scenario())


def test_an_escaped_pair_of_surrogates_is_text() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says("x")
        response = await api.post("/v1/completions", b'{"model": "tiny", "prompt": "\\ud83c\\udf0a"}')
        assert response.status_code == 200
        assert api.engine.asked[0].prompt_ids == tuple(api.ids("🌊"))

    run(scenario())


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 20 * 2**20])
def test_too_large_a_body_is_413(size: int) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        response = await api.post("/v1/completions", b"x" * size)
        assert response.status_code == 413
        assert error(response)["code"] == "request_too_large"

    run(scenario())


def test_unknown_models_and_paths_are_404() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        response = await api.chat(model="gpt-4")
        assert response.status_code == 404
        assert error(response)["code"] == "model_not_found"
        assert (await api.get("/v1/models/gpt-4")).status_code == 404
        response = await api.get("/v1/unknown")
        assert response.status_code == 404
        assert error(response)["type"] == "invalid_request_error"
        assert (await api.get("/v1/completions")).status_code == 405
        assert (await api.post("/v1/completions", {"prompt": "a"})).status_code == 400, "the model is missing"

    run(scenario())


def test_without_a_template_chat_is_refused_with_the_fix_and_text_works() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine(), folder(chat_template=None))
        api.says("x")
        response = await api.chat()
        assert response.status_code == 400
        found = error(response)
        assert found["code"] == "no_chat_template"
        assert "/v1/completions" in found["message"]
        assert "chat_template.jinja" in found["message"]
        assert (await api.complete()).status_code == 200

    run(scenario())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{{ raise_exception('no system turns here') }}", "no system turns here"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ tools[0].name }}", "template"),
        ("{% for", "template"),
    ],
)
def test_a_templates_own_error_is_told(stream: bool, template: str, word: str) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine(), folder(chat_template=template))
        response = await api.chat(stream=stream)
        assert response.status_code == 400, response.text
        assert word in error(response)["message"]

    run(scenario())


def test_the_token_is_asked_for_everywhere_but_on_health() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine(), token="right-token")
        api.says("x")
        for headers in ({}, {"Authorization": "Bearer wrong-token"}, {"Authorization": "right-token"}):
            for path in ("/v1/models", "/v1/models/tiny", "/nothing", "/docs", "/health/", "//health"):
                response = await api.get(path, headers=headers)
                assert response.status_code == 401, path
                assert error(response)["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
            response = await api.post("/v1/completions", b"{", headers=headers)
            assert response.status_code == 401
        assert (await api.get("/health")).json()["status"] == "ok"
        right = {"Authorization": "bearer right-token"}
        assert (await api.get("/v1/models", headers=right)).json()["data"][0]["id"] == "tiny"
        assert (await api.post("/v1/completions", b"{", headers=right)).status_code == 400

    run(scenario())


def test_a_dead_engine_is_503_and_unhealthy() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine(alive=False))
        for response in (await api.chat(), await api.chat(stream=True), await api.complete()):
            assert response.status_code == 503
            assert error(response)["type"] == "server_error"
            assert response.headers["retry-after"]
        assert (await api.get("/health")).status_code == 503

    run(scenario())


@pytest.mark.parametrize("text", ["🌊", "a\u2028b\u2029c\x85d\x1ce\r\nf"])
def test_errors_and_answers_carry_any_text(text: str) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        assert repr(text) in error(await api.chat(model=text))["message"]
        api.says(text)
        response = await api.complete(stream=True, max_tokens=50)
        assert "".join(chunk["choices"][0]["text"] for chunk in events(response)) == text
        assert len(response.text.splitlines()) == response.text.count("\n")
        assert (await api.complete(max_tokens=50)).json()["choices"][0]["text"] == text

    run(scenario())
