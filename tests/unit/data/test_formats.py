"""Six formats, three shapes: nulls are absences, extra fields are nothing, and doubt is an error with the fix."""

from __future__ import annotations

from typing import Any

import pytest

from warpbeam.data.formats import (
    REQUIRED,
    Completion,
    Conversation,
    Text,
    Tokens,
    columns_of,
    detect_format,
    normalise,
)
from warpbeam.data.guess import guess_format
from warpbeam.data.records import BadRecordError
from warpbeam.errors import UserError

USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    ("format_name", "value", "expected"),
    [
        ("messages", {"messages": [USER, ASSISTANT], "id": 7}, Conversation([USER, ASSISTANT])),
        ("messages", {"messages": [USER, ASSISTANT], "system": "s"}, Conversation([SYSTEM, USER, ASSISTANT])),
        ("messages", {"messages": [SYSTEM, USER], "system": "s"}, Conversation([SYSTEM, USER])),
        ("messages", {"messages": [USER], "system": None, "tools": None}, Conversation([USER])),
        (
            "sharegpt",
            {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}], "system": "s"},
            Conversation([{"from": "system", "value": "s"}, {"from": "human", "value": "q"}]),
        ),
        ("messages", {"messages": [USER], "tools": [{"name": "f"}]}, Conversation([USER], [{"name": "f"}])),
        ("messages", {"messages": [USER], "tools": '[{"name": "f"}]'}, Conversation([USER], [{"name": "f"}])),
        ("messages", {"messages": '[{"role": "user", "content": "q"}]'}, Conversation([USER])),
        (
            "sharegpt",
            {"conversations": [{"from": "human", "value": "q"}]},
            Conversation([{"from": "human", "value": "q"}]),
        ),
        ("alpaca", {"instruction": "q", "input": "", "output": "a"}, Conversation([USER, ASSISTANT])),
        (
            "alpaca",
            {"instruction": "q", "input": "x", "output": "a", "system": "s"},
            Conversation([SYSTEM, {"role": "user", "content": "q\n\nx"}, ASSISTANT]),
        ),
        ("prompt-completion", {"prompt": "q", "completion": "a"}, Completion("q", "a")),
        (
            "prompt-completion",
            {"prompt": [USER, ASSISTANT, USER], "completion": [ASSISTANT]},
            Conversation([{**USER, "weight": 0}, {**ASSISTANT, "weight": 0}, {**USER, "weight": 0}, ASSISTANT]),
        ),
        ("text", {"text": "hello"}, Text("hello")),
        ("text", "hello", Text("hello")),
        ("tokens", {"input_ids": [1, 2], "loss_mask": None}, Tokens([1, 2])),
        ("tokens", {"input_ids": [1, 2], "loss_mask": [0, 1]}, Tokens([1, 2], [0, 1])),
    ],
)
def test_each_format(format_name: str, value: Any, expected: Any) -> None:
    assert normalise(value, format_name, {}) == expected


def test_own_names() -> None:
    assert normalise({"dialog": [USER], "messages": 1}, "messages", {"messages": "dialog"}) == Conversation([USER])
    assert normalise("hello", "text", {"text": "body"}) == Text("hello")
    assert columns_of("messages", {"messages": "dialog"}) == ("dialog", "system", "tools")


@pytest.mark.parametrize(
    ("format_name", "value", "reason", "words"),
    [
        ("messages", {"text": "x"}, "missing_field", "needs messages; fields are text"),
        ("messages", {"messages": None}, "missing_field", "messages"),
        ("messages", {"messages": {"role": "user"}}, "wrong_type", "messages must be a list, got dict"),
        ("messages", {"messages": [USER], "system": 3}, "wrong_type", "system must be text"),
        ("messages", {"messages": [USER], "tools": "{"}, "wrong_type", "not JSON"),
        ("alpaca", {"instruction": "q"}, "missing_field", "output"),
        ("prompt-completion", {"prompt": "q", "completion": [ASSISTANT]}, "wrong_type", "both be text, or both lists"),
        ("text", {"text": ["x"]}, "wrong_type", "text must be text, got list"),
        ("tokens", {"input_ids": "1 2"}, "wrong_type", "must be a list"),
    ],
)
def test_wrong_fields_are_named(format_name: str, value: Any, reason: str, words: str) -> None:
    with pytest.raises(BadRecordError) as caught:
        normalise(value, format_name, {})
    assert caught.value.reason == reason
    assert words in caught.value.detail


def test_every_format_is_detected_by_its_fields() -> None:
    for name, fields in REQUIRED.items():
        assert detect_format([{"id": 1}, dict.fromkeys(fields, 1)]) == name
    assert detect_format(["a text file"]) == "text"
    assert detect_format([{"dialog": [USER]}], {"messages": "dialog"}) == "messages"


def test_nulls_at_the_beginning_say_nothing() -> None:
    assert detect_format([{"messages": None, "text": None}] * 10 + [{"messages": [USER], "text": None}]) == "messages"


def test_doubt_is_an_error_with_the_fix() -> None:
    with pytest.raises(UserError, match="alpaca or as text") as caught:
        detect_format([{"instruction": "q", "output": "a", "text": "qa"}])
    assert caught.value.reason == "ambiguous_format"
    assert "format: alpaca" in caught.value.fix
    with pytest.raises(UserError, match="their fields are question, reply") as caught:
        detect_format([{"question": "q", "reply": "a"}])
    assert caught.value.reason == "unknown_format"
    with pytest.raises(UserError, match="none"):
        detect_format([])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"messages": [USER], "prompt": "q"}, ("messages", (), {})),
        ({"instruction": "q", "output": "a", "text": "qa"}, ("alpaca", ("text",), {})),
        ({"dialog": [USER]}, ("messages", (), {"messages": "dialog"})),
        ({"turns": [{"from": "human", "value": "q"}]}, ("sharegpt", (), {"conversations": "turns"})),
        ({"Question": "q", "Answer": "a"}, ("prompt-completion", (), {"prompt": "Question", "completion": "Answer"})),
        ({"document": "a"}, ("text", (), {"text": "document"})),
    ],
)
def test_other_names_are_guessed(value: Any, expected: Any) -> None:
    assert guess_format([{"id": 3}, value]) == expected


def test_what_cannot_be_guessed_is_an_error() -> None:
    with pytest.raises(UserError, match="none of the known formats"):
        guess_format([{"x": 1}])
