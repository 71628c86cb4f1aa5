"""What the completion routes answer, streaming and not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.serve.api import Api, events, folder, run
from tests.unit.serve.scripted_engine import ScriptedEngine
from warpbeam.data.chat import TRAINING_DATE, encode_chat
from warpbeam.serve.engine import TokenChunk
from warpbeam.serve.model_folder import SamplingDefaults

SENTENCE = "north 7 rivers, south 9 lakes 🌊 end"


def streamed(chunks: list[dict[str, Any]], choice: int = 0) -> tuple[str, list[str]]:
    """Text and finish reasons of one choice."""
    mine = [item for chunk in chunks for item in chunk["choices"] if item["index"] == choice]
    text = "".join(item["text"] if "text" in item else item["delta"].get("content", "") for item in mine)
    return text, [item["finish_reason"] for item in mine if item["finish_reason"] is not None]


async def both(api: Api, route: str, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same request without and with streaming."""
    call = api.chat if route == "chat" else api.complete
    whole = await call(**fields)
    assert whole.status_code == 200, whole.text
    stream = await call(**fields, stream=True, stream_options={"include_usage": True})
    return whole.json(), events(stream)


def whole_text(body: dict[str, Any], choice: int = 0) -> str:
    item = body["choices"][choice]
    return str(item["text"] if "text" in item else item["message"]["content"])


@pytest.mark.parametrize("route", ["chat", "completion"])
def test_streaming_and_not_agree(route: str) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says(SENTENCE)
        body, chunks = await both(api, route, max_tokens=100)
        assert whole_text(body) == SENTENCE
        assert streamed(chunks) == (SENTENCE, ["stop"])
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == len(api.ids(SENTENCE)) + 1, "the end token counts"
        assert body["usage"]["prompt_tokens"] == len(api.engine.asked[0].prompt_ids)
        assert body["usage"]["total_tokens"] == sum(
            body["usage"][key] for key in ("prompt_tokens", "completion_tokens")
        )
        assert chunks[-1]["usage"] == body["usage"]

    run(scenario())


def test_a_chat_prompt_has_the_ids_of_training() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says("hi")
        await api.chat("hello 🌊")
        expected, _ = encode_chat(
            api.folder.tokenizer,
            [{"role": "user", "content": "hello 🌊"}],
            add_generation_prompt=True,
            date_string=TRAINING_DATE,
        )
        assert api.engine.asked[0].prompt_ids == tuple(expected)

    run(scenario())


@pytest.mark.parametrize("route", ["chat", "completion"])
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["rivers, south"], "north 7 "),
        (["th 9 l"], "north 7 rivers, sou"),
        (["zzz", "lak"], "north 7 rivers, south 9 "),
        ("🌊", "north 7 rivers, south 9 lakes "),
    ],
)
def test_stop_sequences(route: str, stop: Any, expected: str) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says(SENTENCE)
        body, chunks = await both(api, route, stop=stop, max_tokens=100)
        assert whole_text(body) == expected
        assert body["choices"][0]["finish_reason"] == "stop"
        assert streamed(chunks) == (expected, ["stop"])
        assert chunks[-1]["usage"] == body["usage"]
        assert body["usage"]["completion_tokens"] < len(api.ids(SENTENCE))
        assert not api.engine.running, "the engine's slot is free"

    run(scenario())


def test_near_misses_come_out_complete() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says(SENTENCE)
        body, chunks = await both(api, "chat", stop=["rivers, sooth", "end."], max_tokens=100)
        assert whole_text(body) == SENTENCE
        assert streamed(chunks) == (SENTENCE, ["stop"])

    run(scenario())


def test_a_stop_sequence_in_one_chunk_of_many_tokens_counts_to_its_end_only() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        ids = api.ids("abxcd")
        api.engine.script = [TokenChunk(tuple(ids), "length")]
        body, _ = await both(api, "completion", prompt="a", stop=["x"], max_tokens=100)
        assert (whole_text(body), body["choices"][0]["finish_reason"]) == ("ab", "stop")
        assert body["usage"]["completion_tokens"] == len(api.ids("abx"))

    run(scenario())


@pytest.mark.parametrize("route", ["chat", "completion"])
@pytest.mark.parametrize("text", ["", "n"])
def test_answers_of_no_and_of_one_token(route: str, text: str) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says(text, finish_reason="stop" if not text else "length")
        body, chunks = await both(api, route, max_tokens=1)
        reason = "length" if text else "stop"
        assert (whole_text(body), body["choices"][0]["finish_reason"]) == (text, reason)
        assert streamed(chunks) == (text, [reason])
        assert body["usage"]["completion_tokens"] == 1
        assert chunks[-1]["usage"] == body["usage"]

    run(scenario())


@pytest.mark.parametrize("route", ["chat", "completion"])
@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": False}, {}, None])
def test_chunks_are_well_formed(route: str, options: dict[str, bool] | None) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says("hello world")
        call = api.chat if route == "chat" else api.complete
        fields = {} if options is None else {"stream_options": options}
        chunks = events(await call(stream=True, max_tokens=50, **fields))
        assert len({(chunk["id"], chunk["model"], chunk["created"], chunk["object"]) for chunk in chunks}) == 1
        assert chunks[0]["id"]
        assert chunks[0]["model"] == "tiny"
        if options == {"include_usage": True}:
            *chunks, last = chunks
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] > 0
            assert all(chunk["usage"] is None for chunk in chunks)
        else:
            assert all("usage" not in chunk for chunk in chunks)
        assert all(len(chunk["choices"]) == 1 for chunk in chunks)
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert reasons == [None] * (len(chunks) - 1) + ["stop"]
        if route == "chat":
            roles = ["role" in chunk["choices"][0]["delta"] for chunk in chunks]
            assert roles == [True] + [False] * (len(chunks) - 1)

    run(scenario())


def test_several_choices_and_prompts() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says("hello")
        body, chunks = await both(api, "completion", prompt=["a", "bb cc"], n=2, seed=5, max_tokens=50)
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
        assert all(streamed(chunks, choice) == ("hello", ["stop"]) for choice in range(4))
        assert body["usage"]["prompt_tokens"] == len(api.ids("a")) + len(api.ids("bb cc")), "each prompt counts once"
        assert body["usage"]["completion_tokens"] == 4 * (len(api.ids("hello")) + 1)
        assert [asked.params.seed for asked in api.engine.asked[:4]] == [5, 6, 7, 8]
        assert len({asked.request_id for asked in api.engine.asked}) == 8

    run(scenario())


def test_token_ids_are_a_prompt() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says("x")
        assert (await api.complete([5, 6, 7])).status_code == 200
        assert (await api.complete([[5, 6, 7], [8]])).status_code == 200
        assert [asked.prompt_ids for asked in api.engine.asked] == [(5, 6, 7), (5, 6, 7), (8,)]

    run(scenario())


def test_parameters_reach_the_engine_and_defaults_are_the_models() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine(), folder(defaults=SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20)))
        api.says("x")
        await api.chat()
        await api.chat(temperature=0, top_p=0.5, top_k=3, seed=-4, max_completion_tokens=9)
        await api.complete()
        first, second, third = (asked.params for asked in api.engine.asked)
        assert (first.temperature, first.top_p, first.top_k, first.seed) == (0.7, 0.8, 20, None)
        assert first.max_tokens == 256 - len(api.engine.asked[0].prompt_ids), "chat may use what is left"
        assert (second.temperature, second.top_p, second.top_k, second.seed) == (0, 0.5, 3, -4)
        assert (second.max_tokens, third.max_tokens) == (9, 16)

    run(scenario())


@pytest.mark.parametrize("max_tokens", [6, 7, 100, None])
def test_max_tokens_beyond_the_context_is_shortened(max_tokens: int | None) -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says("x")
        assert (await api.complete([5] * 250, max_tokens=max_tokens)).status_code == 200
        assert api.engine.asked[0].params.max_tokens == 6

    run(scenario())


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    async def scenario() -> None:
        api = Api(ScriptedEngine())
        api.says("x")
        response = await api.chat(
            user="me",
            metadata={},
            store=False,
            n=1,
            logprobs=False,
            top_logprobs=None,
            logit_bias=None,
            presence_penalty=0,
            frequency_penalty=0.0,
            tools=[],
            tool_choice="auto",
            response_format={"type": "text"},
            stop=None,
            seed=None,
            max_tokens=None,
        )
        assert response.status_code == 200, response.text

    run(scenario())
