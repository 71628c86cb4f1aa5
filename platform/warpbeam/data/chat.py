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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpbeam.data.messages import ChatError, carries_loss, clean_messages
from warpbeam.errors import UserError

__all__ = [
    "ChatError",
    "TurnMarks",
    "check_template",
    "clean_messages",
    "encode_chat",
    "end_of_turn_id",
    "loss_mask",
    "no_template",
    "tokenise",
    "turn_marks",
]

Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]

MAX_CHARS = 4 << 20
"""A longer conversation is refused: the characters of each of its tokens would not fit in memory."""
TRAINING_DATE = "26 Jul 2024"
"""For templates that print today's date unless told another (Llama 3): the same rows on every day."""

EXAMPLE = [{"role": "user", "content": "Ready?"}, {"role": "assistant", "content": "Yes."}]
"""What templates are tried on."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PREFIX_FIX = (
    "give a template with {% generation %} around what the assistant says as model.chat_template, "
    "or render the records yourself with code.render"
)


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
    ids, starts, ends = tokenise(tokenizer, text)
    if add_generation_prompt:
        return ids, None
    _check_nothing_lost(text, turns, tools)
    marked = _GENERATION.search(render.template)
    spans = render.generation_spans(turns) if marked else _prefix_spans(render, turns, text)
    if len(spans) != sum(turn["role"] == "assistant" for turn in turns):
        raise ChatError(
            f"the chat template has {len(spans)} {{% generation %}} blocks for the assistant's turns",
            why="one for each assistant turn is needed to know what carries loss",
            reason="template_generation",
        )
    of_assistant = [m for m, turn in zip(messages, turns, strict=True) if turn["role"] == "assistant"]
    return ids, loss_mask(starts, ends, [s for s, m in zip(spans, of_assistant, strict=True) if carries_loss(m)])


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


def check_template(tokenizer: Any) -> None:
    """What must hold before training on conversations, seen on a small example.

    Raises:
        UserError: no template, one that does not end an assistant's turn, or one whose prompt, as it is sent in
            serving, has other ids than the same text has in training.
    """
    end_of_turn_id(tokenizer)
    ids, _ = encode_chat(tokenizer, EXAMPLE, add_generation_prompt=False)
    prompt, _ = encode_chat(tokenizer, EXAMPLE[:1], add_generation_prompt=True)
    if not np.array_equal(ids[: len(prompt)], prompt):
        shown = tokenizer.decode(prompt[-3:])
        raise UserError(
            "the chat template's prompt has other token ids before an answer than by itself",
            why=f"serving would ask with ids that training never sees; the prompt ends with {shown!r}",
            fix="end the generation prompt with a special token or a line end, not with a space (model.chat_template)",
            reason="template_prompt_tokens",
        )


def end_of_turn_id(tokenizer: Any) -> int:
    """The token that ends an assistant's turn: what must carry loss, and what generation stops at.

    Raises:
        UserError: no template, or one that does not end a turn with a special token.
    """
    ids, loss = encode_chat(tokenizer, EXAMPLE, add_generation_prompt=False)
    assert loss is not None
    last = int(ids[loss][-1])
    if last in tokenizer.added_tokens_decoder or last == tokenizer.eos_token_id:
        return last
    raise UserError(
        "the chat template does not end an assistant's turn with a special token",
        why=f"the last thing that carries loss is {tokenizer.decode([last])!r}, so the model would not learn to stop",
        fix="put {{ eos_token }} after the assistant's content (model.chat_template)",
        reason="template_without_end",
    )


@lru_cache(maxsize=8)
def _turn_marks(tokenizer: Any, template: str) -> TurnMarks:
    render = _Renderer(tokenizer, None, {})
    prompt, whole = render(EXAMPLE[:1], True), render(EXAMPLE, False)
    answer = EXAMPLE[1]["content"]
    if not whole.startswith(prompt) or answer not in whole[len(prompt) :]:
        raise _not_a_prefix("an answer")
    return TurnMarks(
        prompt.removeprefix(render(EXAMPLE[:1], False)), whole[len(prompt) :].partition(answer)[2].rstrip()
    )


def template_of(tokenizer: Any, has_tools: bool = False) -> str:
    """The template's text.

    Raises:
        UserError: there is none.
    """
    if not tokenizer.chat_template:
        raise no_template()
    return str(tokenizer.get_chat_template(None, [{}] if has_tools else None))


def no_template() -> UserError:
    """Why conversations cannot be rendered."""
    return UserError(
        "the tokenizer has no chat template, so conversations cannot be rendered",
        fix="set model.chat_template in the job file to a template (inline, or a .jinja file)",
        reason="no_chat_template",
    )


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
        from jinja2 import TemplateError, TemplateSyntaxError
        from transformers.utils.chat_template_utils import render_jinja_template

        if not turns:
            raise ChatError("the conversation has no turns", reason="no_loss")
        try:
            texts, spans = render_jinja_template(
                [turns], tools=self.tools, chat_template=self.template, **options, **self.args
            )
        except TemplateSyntaxError as error:  # broken for every conversation: the job's mistake, not a record's
            raise UserError(
                f"the chat template is no valid Jinja: line {error.lineno}: {error.message}",
                fix="mend it: model.chat_template in the job file, or chat_template.jinja beside the tokenizer",
                reason="broken_template",
            ) from error
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
        spans.append((start, _turn_end(render, turns, index, text, start)))
    return spans


def _turn_end(render: _Renderer, turns: list[dict[str, Any]], index: int, text: str, start: int) -> int:
    """Where turn `index`, which begins at `start`, ends in `text`, its end-of-turn token included."""
    is_last = index + 1 == len(turns)
    until = (text if is_last else render(turns[: index + 1], False)).rstrip()
    if text.startswith(until) and len(until) > start:
        return len(until)
    # Templates such as Qwen3's render a turn otherwise once another follows it (its thoughts are dropped).
    closing = turn_marks(render.tokenizer).closing
    end = text.find(closing, start) + len(closing)
    if not closing or end < start + len(closing) or turns[index + 1]["content"].strip() not in text[end:]:
        raise _not_a_prefix(f"turn {index + 1}")
    return end


def _not_a_prefix(what: str) -> ChatError:
    return ChatError(
        f"what the assistant says in {what} cannot be told apart from the rest",
        why="the chat template renders the beginning of a conversation otherwise than the whole of it",
        fix=_PREFIX_FIX,
        reason="template_not_prefix",
    )


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
