"""One answer being generated: token ids from the engine become text that is safe to send.

Streaming and not streaming both read these pieces, so they cannot differ in text, counts or ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from warpbeam.serve.engine import Engine, FinishReason, SamplingParams
from warpbeam.serve.stops import StopMatcher
from warpbeam.serve.tokens_to_text import TextStream


@dataclass(frozen=True)
class Piece:
    """Text of one choice; the last one has a finish reason."""

    choice: int
    text: str
    finish_reason: FinishReason | None = None


class Answer:
    """One choice: a prompt, how to sample it, where to stop.

    Args:
        choice: its index in the response.
        decode: token ids to text without special tokens.
    """

    def __init__(
        self,
        choice: int,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        stops: Sequence[str],
        *,
        decode: Callable[[Sequence[int]], str],
        request_id: str,
    ) -> None:
        self.choice = choice
        self.prompt_ids = prompt_ids
        self.params = params
        self.completion_tokens = 0
        """Tokens read so far, the end-of-turn token and those of a stop sequence included."""
        self._text = TextStream(decode)
        self._stop = StopMatcher(stops)
        self._request_id = request_id

    async def pieces(self, engine: Engine) -> AsyncGenerator[Piece, None]:
        """Generate. Closing the iterator frees the engine's slot.

        Raises:
            EngineDead: the engine ended on the way.
        """
        async with aclosing(engine.generate(self.prompt_ids, self.params, self._request_id)) as chunks:
            async for chunk in chunks:
                shown = chunk.token_ids[:-1] if chunk.finish_reason == "stop" else chunk.token_ids
                text = self._read(shown)
                if self._stop.stopped:
                    yield Piece(self.choice, text, "stop")
                    return
                self.completion_tokens += len(chunk.token_ids) - len(shown)
                if chunk.finish_reason is not None:
                    yield Piece(self.choice, text + self._stop.finish(), chunk.finish_reason)
                    return
                if text:
                    yield Piece(self.choice, text)

    def _read(self, token_ids: Sequence[int]) -> str:
        """Token by token, so that a stop sequence ends the count at the token that completed it."""
        text = ""
        for token_id in token_ids:
            self.completion_tokens += 1
            text += self._stop.feed(self._text.feed([token_id]))
            if self._stop.stopped:
                break
        return text


async def all_pieces(answers: Sequence[Answer], engine: Engine) -> AsyncGenerator[Piece, None]:
    """The pieces of several answers as they come. Closing it cancels all; an error of one ends all."""
    if len(answers) == 1:
        async with aclosing(answers[0].pieces(engine)) as pieces:
            async for piece in pieces:
                yield piece
        return

    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()

    async def pump(answer: Answer) -> None:
        try:
            async with aclosing(answer.pieces(engine)) as pieces:
                async for piece in pieces:
                    queue.put_nowait(piece)
        except Exception as error:  # handed over to the reader
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(answer)) for answer in answers]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
