"""What a record looks like: six formats, each brought to one of three shapes (a conversation, a text, ready tokens).

Extra fields are ignored; a null is as good as absent. Which fields exist in which file does not matter, so a column
that is null in one file and text in another is no problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from warpbeam.data.records import BadRecordError
from warpbeam.errors import UserError

REQUIRED = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "alpaca": ("instruction", "output"),
    "prompt-completion": ("prompt", "completion"),
    "tokens": ("input_ids",),
    "text": ("text",),
}
"""The fields that make a record one of a format."""
OPTIONAL = {
    "messages": ("system", "tools"),
    "sharegpt": ("system", "tools"),
    "alpaca": ("input", "system"),
    "prompt-completion": ("system",),
    "tokens": ("loss_mask",),
    "text": (),
}


class RecordSource(Protocol):
    """What of a data source matters here (job.DataSource has it); `format` is no longer `auto`."""

    @property
    def format(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Conversation:
    """Turns as they were given (roles and contents are checked when they are rendered)."""

    messages: list[Any]
    tools: list[Any] | None = None


@dataclass(frozen=True)
class Completion:
    """A prompt and what should follow it, as plain text."""

    prompt: str
    completion: str
    system: str | None = None


@dataclass(frozen=True)
class Text:
    """A document; every token carries loss."""

    text: str


@dataclass(frozen=True)
class Tokens:
    """Ready token ids and which of them carry loss (None: all)."""

    input_ids: list[Any]
    loss_mask: list[Any] | None = None


Normalised = Conversation | Completion | Text | Tokens


def columns_of(format_name: str, fields: Mapping[str, str]) -> tuple[str, ...]:
    """The columns a format can use, by the names that the file gives them."""
    return tuple(fields.get(name, name) for name in (*REQUIRED[format_name], *OPTIONAL[format_name]))


def normalise(value: dict[str, Any] | str, format_name: str, fields: Mapping[str, str]) -> Normalised:
    """Bring a raw record to its shape.

    Args:
        fields: our field name -> the record's own.

    Raises:
        BadRecordError: a field is missing or has the wrong type.
    """
    if isinstance(value, str):
        value = {fields.get("text", "text"): value}

    def get(name: str) -> Any:
        return value.get(fields.get(name, name))

    missing = [fields.get(name, name) for name in REQUIRED[format_name] if get(name) is None]
    if missing:
        have = ", ".join(sorted(str(key) for key in value)) or "none"
        raise BadRecordError("missing_field", f"format {format_name} needs {' and '.join(missing)}; fields are {have}")
    if format_name == "text":
        return Text(_string(get("text"), "text"))
    if format_name == "tokens":
        mask = get("loss_mask")
        return Tokens(_list(get("input_ids"), "input_ids"), None if mask is None else _list(mask, "loss_mask"))
    system = get("system")
    system = None if system is None or system == "" else _string(system, "system")
    if format_name == "prompt-completion":
        return _completion(get("prompt"), get("completion"), system)
    if format_name == "alpaca":
        asked, extra = _string(get("instruction"), "instruction"), get("input")
        if extra:
            asked = f"{asked}\n\n{_string(extra, 'input')}"
        turns: list[Any] = [_turn("user", asked), _turn("assistant", _string(get("output"), "output"))]
        return Conversation(_with_system(system, turns))
    turns = _list(get(REQUIRED[format_name][0]), REQUIRED[format_name][0])
    return Conversation(_with_system(system, turns), _tools(get("tools")))


def detect_format(values: Iterable[dict[str, Any] | str], fields: Mapping[str, str] | None = None) -> str:
    """The format that these records have, by their fields.

    A field counts when any record has it and it is not null: the first rows of a file may well be nulls.

    Raises:
        UserError: none fits, or several do.
    """
    found = matching_formats(values, fields or {})
    if len(found.formats) == 1:
        return found.formats[0]
    known = "; ".join(f"{name} ({', '.join(needs)})" for name, needs in REQUIRED.items())
    if not found.formats:
        raise UserError(
            f"the records have none of the known formats: their fields are {', '.join(found.names) or 'none'}",
            why=f"known formats and the fields they need: {known}",
            fix="write format: and, where names differ, fields: {messages: YOUR_FIELD} beside path:",
            reason="unknown_format",
        )
    raise UserError(
        f"the records could be read as {' or as '.join(found.formats)}",
        why=f"their fields are {', '.join(found.names)}",
        fix=f"write format: {found.formats[0]} (or the other) beside path:",
        reason="ambiguous_format",
    )


@dataclass(frozen=True)
class Matches:
    """Formats that records could have, the richest first, and the names of their fields that are not null."""

    formats: tuple[str, ...]
    names: tuple[str, ...]


def matching_formats(values: Iterable[dict[str, Any] | str], fields: Mapping[str, str]) -> Matches:
    """Every format whose fields are there."""
    names: dict[str, None] = {}
    for value in values:
        if isinstance(value, str):
            return Matches(("text",), ("text",))
        names.update(dict.fromkeys(key for key, item in value.items() if item is not None))
    formats = [name for name, needs in REQUIRED.items() if all(fields.get(field, field) in names for field in needs)]
    return Matches(tuple(formats), tuple(names))


def _completion(prompt: Any, completion: Any, system: str | None) -> Conversation | Completion:
    if isinstance(prompt, str) and isinstance(completion, str):
        return Completion(prompt, completion, system)
    if isinstance(prompt, list) and isinstance(completion, list):
        # What was said before is context, even where the assistant said it.
        context = [{**turn, "weight": 0} if isinstance(turn, dict) else turn for turn in prompt]
        return Conversation(_with_system(system, [*context, *completion]))
    raise BadRecordError("wrong_type", "prompt and completion must both be text, or both lists of messages")


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _with_system(system: str | None, turns: list[Any]) -> list[Any]:
    if system is None or (turns and _says(turns[0], "system", system)):
        return turns
    return [_turn("system", system), *turns]


def _says(turn: Any, role: str, content: str) -> bool:
    """Whether a turn, in OpenAI's words or ShareGPT's, is this one."""
    if not isinstance(turn, dict):
        return False
    return (turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))) == (role, content)


def _tools(value: Any) -> list[Any] | None:
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError as error:
            raise BadRecordError("wrong_type", f"tools is text that is not JSON: {error}") from error
    return _list(value, "tools") if value else None


def _string(value: Any, name: str) -> str:
    if isinstance(value, bytes):  # a Parquet column that does not say that it is text
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise BadRecordError("invalid_utf8", f"{name}: {error.reason} at byte {error.start + 1}") from error
    if not isinstance(value, str):
        raise BadRecordError("wrong_type", f"{name} must be text, got {type(value).__name__}")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        # A list that went through a CSV or a text column on its way here.
        try:
            value = json.loads(value)
        except ValueError as error:
            raise BadRecordError("wrong_type", f"{name} is text that is not a JSON list: {error}") from error
    if not isinstance(value, list):
        raise BadRecordError("wrong_type", f"{name} must be a list, got {type(value).__name__}")
    return value
