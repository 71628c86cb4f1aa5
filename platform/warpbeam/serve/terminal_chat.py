"""A conversation in the terminal with a served model: `warpbeam chat`.

Ctrl-C stops the answer that is being written (the server frees its slot), at the prompt it leaves; a refused message,
such as one that no longer fits the context, is explained and forgotten, and the conversation goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

from warpbeam.errors import UserError
from warpbeam.serve.client import served_model, stream

PROMPT = "> "
HELP = "/reset forgets the conversation, /exit leaves (or Ctrl-D); Ctrl-C stops an answer."

Stream = Callable[[Sequence[dict[str, str]]], Generator[str, None, None]]


def chat(url: str, token: str | None = None, *, system: str | None = None, **params: Any) -> None:
    """Converse until the user leaves.

    Args:
        url: a deployment's url, without `/v1`.
        system: the first message of the conversation.
        params: fields of every request: temperature, max_tokens, ...

    Raises:
        InfraError: the server cannot be reached or failed.
    """
    model = served_model(url, token)["id"]
    typed = sys.stdin.isatty()  # else a script asks, and wants nothing but answers
    if typed:
        print(f"{model} at {url}. {HELP}")
    read = input if typed else lambda prompt: input()
    converse(lambda messages: stream(url, messages, token, model=model, **params), system=system, read=read)


def converse(
    answer: Stream,
    *,
    system: str | None = None,
    read: Callable[[str], str] = input,
    write: Callable[[str], None] = lambda text: print(text, end="", flush=True),
) -> None:
    """The loop itself, with its three sides given."""
    opening = [] if system is None else [{"role": "system", "content": system}]
    messages = list(opening)
    while True:
        try:
            line = read(PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            write("\n")
            return
        if line == "/exit":
            return
        if line == "/reset":
            messages = list(opening)
        elif line:
            messages = _turn(answer, [*messages, {"role": "user", "content": line}], write)


def _turn(answer: Stream, messages: list[dict[str, str]], write: Callable[[str], None]) -> list[dict[str, str]]:
    """The conversation after one question: with its answer, or without the question if it was refused."""
    text = ""
    try:
        with closing(answer(messages)) as pieces:
            for piece in pieces:
                text += piece
                write(piece)
    except KeyboardInterrupt:
        write(" [stopped]")
    except UserError as error:
        write(f"{error}\n")
        return messages[:-1]
    write("\n")
    return [*messages, {"role": "assistant", "content": text}]
