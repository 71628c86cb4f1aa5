"""`warpbeam chat NAME`: talk to a served model in the terminal, or ask it one thing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from warpbeam.cli.options import Json
from warpbeam.cli.output import print_json, say
from warpbeam.errors import UserError


def chat(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What was deployed.")],
    message: Annotated[str | None, typer.Option("--message", "-m", help="Ask this, print the answer, end.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="The conversation's first message.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0.0)] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1)] = None,
    json: Json = False,
) -> None:
    """Talk to a served model."""
    if json and message is None:
        raise UserError("--json is for one answer", fix="ask it with --message TEXT", reason="bad_input")
    from warpbeam.serve.client import ask
    from warpbeam.serve.deploy import find_deployment
    from warpbeam.serve.terminal_chat import chat as converse

    served = find_deployment(name)
    given = {"temperature": temperature, "max_tokens": max_tokens}
    params: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if message is None:
        converse(served.url, served.token, system=system, **params)
        return
    messages = [{"role": "user", "content": message}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    reply = ask(served.url, messages, served.token, **params)
    if json:
        usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
        print_json({"content": reply.text, "finish_reason": reply.finish_reason, **usage})
    else:
        say(reply.text)
