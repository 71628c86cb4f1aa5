"""Conversations to token ids, and which of them carry loss: the one function that training and serving share.

The chat template renders the whole conversation once, and the text is tokenised once, so a conversation has the same
ids wherever it is encoded. Which characters the assistant said is found by rendering prefixes: turn i begins where the
prompt for it ends (`add_generation_prompt`) and ends where the conversation up to it does, its end-of-turn token
included, because that token is what teaches the model to stop. A template that marks its `{% generation %}` says so
itself. Loss is decided by position, never by id: a padding token that equals the end token changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from warpbeam.errors import UserError

Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]

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
MAX_CHARS = 4 << 20
"""A longer conversation is refused: the characters of each of its tokens would not fit in memory."""
TRAINING_DATE = "26 Jul 2024"
"""For templates that print today's date unless told another (Llama 3): the same rows on every day."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PREFIX_FIX = (
    "give a template with {% generation %} around what the assistant says as model.chat_template, "
    "or render the records yourself with code.render"
)


class ChatError(UserError):
    """This conversation cannot be encoded: its roles, its contents, or the template's own refusal."""

    default_reason: ClassVar[str] = "bad_chat"


def encode_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    tools: Sequence[Any] | None = None,
    **template_args: Any,
) -> tuple[Ids, Mask | None]:
    """Token ids of a conversation and, for training, which of them carry loss.

    Args:
        tokenizer: a fast Hugging Face tokenizer with a chat template.
        messages: OpenAI-style; roles of ShareGPT are understood too. `weight: 0` takes an assistant turn's loss away.
        add_generation_prompt: True is a prompt to be answered: no mask. False is a whole conversation.
        template_args: more variables for the template.

    Returns:
        ids [n] and mask [n] (None with `add_generation_prompt`). No special tokens but those of the template.

    Raises:
        ChatError: with the reason code, and the turn where there is one.
        UserError: the tokenizer has no chat template.
    """
    turns = clean_messages(messages)
    render = _Renderer(tokenizer, tools, template_args)
    text = render(turns, add_generation_prompt)
    _check_nothing_lost(text, turns, tools)
    ids, starts, ends = tokenise(tokenizer, text)
    if add_generation_prompt:
        return ids, None
    weights = [_weight(message) for message in messages]
    marked = _GENERATION.search(render.template)
    spans = render.generation_spans(turns) if marked else _prefix_spans(render, turns, text)
    if len(spans) != sum(turn["role"] == "assistant" for turn in turns):
        raise ChatError(
            f"the chat template has {len(spans)} {{% generation %}} blocks for the assistant's turns",
            why="one for each assistant turn is needed to know what carries loss",
            reason="template_generation",
        )
    assistant_weights = [weight for weight, turn in zip(weights, turns, strict=True) if turn["role"] == "assistant"]
    loss = loss_mask(starts, ends, [span for span, weight in zip(spans, assistant_weights, strict=True) if weight])
    return ids, loss


def clean_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages as templates expect them: known roles, text contents, tool arguments as objects, no nulls.

    Raises:
        ChatError: unknown_role, content_not_text or bad_message, naming the turn.
    """
    return [_clean(message, number) for number, message in enumerate(messages, 1)]


def tokenise(tokenizer: Any, text: str) -> tuple[Ids, Ids, Ids]:
    """Ids of a text without added special tokens, and the characters `[start, end)` of each."""
    if len(text) > MAX_CHARS:
        raise ChatError(f"it has {len(text)} characters, more than {MAX_CHARS}", reason="too_long")
    try:
        encoding = tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
    except (TypeError, UnicodeEncodeError) as error:  # tokenizers' way to refuse half a surrogate pair
        raise ChatError("it is not valid Unicode text", why=str(error), reason="invalid_utf8") from error
    offsets = np.asarray(encoding["offset_mapping"], dtype=np.int32).reshape(-1, 2)
    return np.asarray(encoding["input_ids"], dtype=np.int32), offsets[:, 0], offsets[:, 1]


def loss_mask(starts: Ids, ends: Ids, spans: Sequence[tuple[int, int]]) -> Mask:
    """Tokens that overlap a span of characters.

    Byte-level tokenizers may leave the white space before a word out of its offsets, so a token reaches back to where
    the one before it ended; and all the tokens of one many-byte character have that character's offsets.
    """
    mask = np.zeros(len(ends), dtype=np.bool_)
    previous = np.concatenate([np.zeros(1, dtype=np.int32), ends[:-1]])
    begins = np.minimum(starts, previous)
    for start, end in spans:
        mask |= (ends > start) & (begins < end)
    return mask


@dataclass(frozen=True)
class TurnMarks:
    """What a template puts around an assistant's turn, seen on a small example."""

    opening: str
    """The generation prompt."""
    closing: str
    """After the content: the end-of-turn token."""


def turn_marks(tokenizer: Any) -> TurnMarks:
    """How the tokenizer's template opens and closes an assistant's turn.

    Raises:
        ChatError: the template refuses even `user, assistant`, or its prompt is not what it puts before an answer.
        UserError: the tokenizer has no chat template.
    """
    return _turn_marks(tokenizer, template_of(tokenizer))


@lru_cache(maxsize=8)
def _turn_marks(tokenizer: Any, template: str) -> TurnMarks:
    render = _Renderer(tokenizer, None, {})
    asked, answered = {"role": "user", "content": "Ready?"}, {"role": "assistant", "content": "Yes."}
    prompt, whole = render([asked], True), render([asked, answered], False)
    if not whole.startswith(prompt) or "Yes." not in whole[len(prompt) :]:
        raise _not_a_prefix("an answer")
    return TurnMarks(prompt.removeprefix(render([asked], False)), whole[len(prompt) :].partition("Yes.")[2].rstrip())


def template_of(tokenizer: Any, has_tools: bool = False) -> str:
    """The template's text.

    Raises:
        UserError: there is none.
    """
    if not tokenizer.chat_template:
        raise UserError(
            "the tokenizer has no chat template, so conversations cannot be rendered",
            fix="set model.chat_template in the job file to a template (inline, or a .jinja file)",
            reason="no_chat_template",
        )
    return str(tokenizer.get_chat_template(None, [{}] if has_tools else None))


class _Renderer:
    """A tokenizer's template with everything but the conversation fixed."""

    def __init__(self, tokenizer: Any, tools: Sequence[Any] | None, template_args: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.tools = list(tools) if tools else None
        self.template = template_of(tokenizer, has_tools=self.tools is not None)
        self.args = {**tokenizer.special_tokens_map, **template_args}

    def __call__(self, turns: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        return self._render(turns, add_generation_prompt=add_generation_prompt)[0]

    def generation_spans(self, turns: list[dict[str, Any]]) -> list[tuple[int, int]]:
        """The characters of each `{% generation %}` block, and the end token when it comes right after."""
        text, spans = self._render(turns, return_assistant_tokens_mask=True)
        specials = sorted(self.tokenizer.all_special_tokens, key=len, reverse=True)

        def closed(end: int) -> int:
            return end + next((len(token) for token in specials if text.startswith(token, end)), 0)

        return [(start, end if text[start:end].endswith(tuple(specials)) else closed(end)) for start, end in spans]

    def _render(self, turns: list[dict[str, Any]], **options: Any) -> tuple[str, list[tuple[int, int]]]:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        if not turns:
            raise ChatError("the conversation has no turns", reason="no_loss")
        try:
            texts, spans = render_jinja_template(
                [turns], tools=self.tools, chat_template=self.template, **options, **self.args
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ChatError(
                f"the chat template refuses the conversation: {error}",
                why=f"the roles are {', '.join(turn['role'] for turn in turns)}",
                reason="template_failed",
            ) from error
        return texts[0], spans[0] if spans else []


def _prefix_spans(render: _Renderer, turns: list[dict[str, Any]], text: str) -> list[tuple[int, int]]:
    """The characters of each assistant turn, by rendering the conversation up to it."""
    spans = []
    for index, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        if index:
            prompt = render(turns[:index], True)
            start = len(prompt)
        else:  # nothing to render before it: it begins after the first generation prompt
            prompt = turn_marks(render.tokenizer).opening
            start = text.find(prompt) + len(prompt)
        if prompt not in text[:start]:
            raise _not_a_prefix(f"turn {index + 1}")
        more = index + 1 < len(turns)
        spans.append((start, _turn_end(render, turns[: index + 1], text, start, more)))
    return spans


def _turn_end(render: _Renderer, turns: list[dict[str, Any]], text: str, start: int, more: bool) -> int:
    """Where the last of `turns` ends in `text`, its end-of-turn token included; `more`: others follow it."""
    until = (render(turns, False) if more else text).rstrip()
    if text.startswith(until) and len(until) > start:
        return len(until)
    # Templates such as Qwen3's render a turn otherwise once another follows it (its thoughts are dropped).
    closing = turn_marks(render.tokenizer).closing
    at = text.find(closing, start) if closing else -1
    if at < 0:
        raise _not_a_prefix(f"turn {len(turns)}")
    return at + len(closing)


def _not_a_prefix(what: str) -> ChatError:
    return ChatError(
        f"what the assistant says in {what} cannot be told apart from the rest",
        why="the chat template renders the beginning of a conversation otherwise than the whole of it",
        fix=_PREFIX_FIX,
        reason="template_not_prefix",
    )


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


def _weight(message: Mapping[str, Any]) -> bool:
    weight = message.get("weight")
    if weight is None or weight in (0, 1):
        return weight != 0
    raise ChatError(f"a message's weight must be 0 or 1, got {weight!r}", reason="bad_message")


def _check_nothing_lost(text: str, turns: list[dict[str, Any]], tools: Sequence[Any] | None) -> None:
    """Some templates pass over roles they do not know; training on what is left would be training on something else."""
    for number, turn in enumerate(turns, 1):
        content = turn["content"].strip()
        if (
            turn["role"] != "assistant"
            and content not in text
            and json.dumps(content, ensure_ascii=False)[1:-1] not in text
        ):
            raise _lost(f"turn {number} ({turn['role']})")
        for call in turn.get("tool_calls", ()):
            name = (call.get("function") or call).get("name")
            if isinstance(name, str) and name not in text:
                raise _lost(f"the tool call {name} of turn {number}")
    for tool in tools or ():
        name = (tool.get("function") or tool).get("name") if isinstance(tool, Mapping) else None
        if isinstance(name, str) and name not in text:
            raise _lost(f"the tool {name}")


def _lost(what: str) -> ChatError:
    return ChatError(
        f"the chat template leaves out {what}",
        fix="use a template that renders it (model.chat_template), or take it out of the record",
        reason="template_left_out",
    )
