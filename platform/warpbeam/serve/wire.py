"""The JSON of OpenAI's two completion routes, whole and in chunks.

Every chunk of a stream has the same id, model and time; the role comes once, first; a choice's finish reason comes
once, last; usage comes in one extra chunk without choices, only when it was asked for.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from warpbeam.serve.answer import Answer, Piece


def usage(answers: Sequence[Answer]) -> dict[str, int]:
    """Token counts of a response; a prompt with several answers counts once."""
    prompts = {id(answer.prompt_ids): len(answer.prompt_ids) for answer in answers}
    prompt_tokens = sum(prompts.values())
    completion_tokens = sum(answer.completion_tokens for answer in answers)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class Wire(ABC):
    """One response's constant part and the shape of its choices."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, model: str) -> None:
        self._id = f"{self.prefix}-{uuid4().hex}"
        self._created = int(time.time())
        self._model = model

    def whole(self, texts: Sequence[str], reasons: Sequence[str], counts: dict[str, int]) -> dict[str, Any]:
        """The response of a request that does not stream."""
        choices = [
            {"index": index, **self._choice(text), "logprobs": None, "finish_reason": reason}
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        return {**self._envelope(self.whole_object, choices), "usage": counts}

    @abstractmethod
    def opening(self, choices: int) -> Iterator[dict[str, Any]]:
        """Chunks before the first text."""

    @abstractmethod
    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Chunks for one piece."""

    def closing(self) -> dict[str, Any]:
        """The chunk that carries the usage."""
        return self._envelope(self.chunk_object, [])

    @abstractmethod
    def _choice(self, text: str) -> dict[str, Any]: ...

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}

    def _chunk(self, index: int, fields: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **fields, "logprobs": None, "finish_reason": finish_reason}
        return self._envelope(self.chunk_object, [choice])


class ChatWire(Wire):
    """/v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, choices: int) -> Iterator[dict[str, Any]]:
        for index in range(choices):
            yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, None)

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if piece.text:
            yield self._chunk(piece.choice, {"delta": {"content": piece.text}}, None)
        if piece.finish_reason:
            yield self._chunk(piece.choice, {"delta": {}}, piece.finish_reason)

    def _choice(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


class CompletionWire(Wire):
    """/v1/completions."""

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, choices: int) -> Iterator[dict[str, Any]]:
        yield from ()

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        yield self._chunk(piece.choice, {"text": piece.text}, piece.finish_reason)

    def _choice(self, text: str) -> dict[str, Any]:
        return {"text": text}
