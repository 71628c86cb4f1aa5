"""Messages as people and data sets write them, brought to what chat templates expect.

OpenAI's and ShareGPT's names of roles and fields, contents in parts, tool arguments as JSON in a string, the nulls that
Parquet puts everywhere: settled here once, for training and serving alike. What is not understood is named, never
passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from warpbeam.errors import UserError

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""Role in a record -> role in a template."""
PASSED_ON = ("name", "tool_calls", "tool_call_id", "reasoning_content")
"""Fields of a message, besides role and content, that templates read."""


class ChatError(UserError):
    """This conversation cannot be encoded: its roles, its contents, or the template's own refusal."""

    default_reason: ClassVar[str] = "bad_chat"

    def in_one_line(self) -> str:
        """What, why and fix, as the detail of a bad record."""
        return "; ".join(filter(None, (self.what, self.why, self.fix)))


def clean_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages as templates expect them: known roles, text contents, tool arguments as objects, no nulls.

    Raises:
        ChatError: unknown_role, content_not_text or bad_message, naming the turn.
    """
    return [_clean(message, number) for number, message in enumerate(messages, 1)]


def carries_loss(message: Mapping[str, Any]) -> bool:
    """Whether an assistant's turn is learnt: OpenAI's `weight`, 1 when absent."""
    weight = message.get("weight")
    if weight is None or weight in (0, 1):
        return weight != 0
    raise ChatError(f"a message's weight must be 0 or 1, got {weight!r}", reason="bad_message")


def _clean(message: Any, number: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatError(f"turn {number} is not a message but {type(message).__name__}", reason="bad_message")
    given = message.get("role") or message.get("from")
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise ChatError(
            f"turn {number} has the unknown role {given!r}" if given else f"turn {number} has no role",
            why=f"known are {', '.join(ROLES)}",
            reason="unknown_role",
        )
    content = message["content"] if message.get("content") is not None else message.get("value")
    turn: dict[str, Any] = {"role": role, "content": _text_of(content, message, number)}
    for name in PASSED_ON:
        if message.get(name) is not None:
            turn[name] = _without_nulls(message[name])
    if "tool_calls" in turn:
        turn["tool_calls"] = [_with_object_arguments(call, number) for call in _as_list(turn["tool_calls"], number)]
        if not turn["tool_calls"]:
            del turn["tool_calls"]
    return turn


def _text_of(content: Any, message: Mapping[str, Any], number: int) -> str:
    if isinstance(content, str):
        return content
    if content is None and message.get("tool_calls"):
        return ""
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        return "".join(part if isinstance(part, str) else part["text"] for part in content)
    raise ChatError(
        f"the content of turn {number} is not text",
        why="absent or null" if content is None else f"it is {_shape(content)}",
        reason="content_not_text",
    )


def _is_text_part(part: Any) -> bool:
    return isinstance(part, str) or (
        isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)
    )


def _shape(content: Any) -> str:
    if isinstance(content, list):
        kinds = {str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__ for part in content}
        return f"a list of {', '.join(sorted(kinds))}"
    return type(content).__name__


def _as_list(value: Any, number: int) -> list[Any]:
    if isinstance(value, list):
        return value
    raise ChatError(f"tool_calls of turn {number} is not a list", reason="bad_message")


def _with_object_arguments(call: Any, number: int) -> Any:
    """OpenAI's arguments are JSON in a string; templates expect the object."""
    if not isinstance(call, Mapping):
        raise ChatError(f"a tool call of turn {number} is not an object", reason="bad_message")
    function = call.get("function")
    if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
        try:
            return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
        except ValueError:
            return dict(call)
    return dict(call)


def _without_nulls(value: Any) -> Any:
    """Parquet gives every object all the fields that any object has."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_nulls(item) for item in value]
    return value
