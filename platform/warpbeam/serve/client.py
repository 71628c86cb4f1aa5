"""Talking to a served model from the command line: one question, or a conversation in the terminal.

Plain httpx, so that the light core can chat with any OpenAI-compatible endpoint.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from warpbeam.errors import InfraError, UserError, WarpbeamError

TIMEOUT = httpx.Timeout(600.0, connect=10.0)
"""A long answer on a CPU takes minutes; a server that does not even accept is down."""


@dataclass(frozen=True)
class Reply:
    """One answer."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


def ask(
    url: str,
    messages: Sequence[dict[str, str]],
    token: str | None = None,
    *,
    model: str | None = None,
    **params: Any,
) -> Reply:
    """One question to a chat endpoint.

    Args:
        url: a deployment's url, without `/v1`.
        messages: OpenAI's.
        model: None asks the server what it serves.
        params: more fields of the request: temperature, max_tokens, ...

    Raises:
        UserError: the server refuses the request, with its message.
        InfraError: it cannot be reached, or it failed.
    """
    body = {"model": model or served_model(url, token)["id"], "messages": list(messages), **params}
    with _reaching(url):
        response = httpx.post(f"{url}/v1/chat/completions", json=body, headers=_headers(token), timeout=TIMEOUT)
        _check(response)
        answer = response.json()
        choice = answer["choices"][0]
        return Reply(
            text=choice["message"]["content"],
            finish_reason=choice["finish_reason"],
            prompt_tokens=answer["usage"]["prompt_tokens"],
            completion_tokens=answer["usage"]["completion_tokens"],
        )


def stream(
    url: str, messages: Sequence[dict[str, str]], token: str | None = None, *, model: str | None = None, **params: Any
) -> Generator[str, None, None]:
    """The same, piece by piece. Closing the generator cancels the answer."""
    body = {"model": model or served_model(url, token)["id"], "messages": list(messages), "stream": True, **params}
    with (
        _reaching(url),
        httpx.stream(
            "POST", f"{url}/v1/chat/completions", json=body, headers=_headers(token), timeout=TIMEOUT
        ) as response,
    ):
        if response.is_error:
            response.read()
        _check(response)
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if not line or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise InfraError(f"the answer was cut: {event['error']['message']}", reason="answer_cut")
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""


def served_model(url: str, token: str | None = None) -> dict[str, Any]:
    """The server's only model, as /v1/models describes it."""
    with _reaching(url):
        response = httpx.get(f"{url}/v1/models", headers=_headers(token), timeout=TIMEOUT)
        _check(response)
        card: dict[str, Any] = response.json()["data"][0]
        return card


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:500]
    kind: type[WarpbeamError] = UserError if response.is_client_error else InfraError
    raise kind(f"the server answered {response.status_code}: {message}", reason="request_refused")


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Connection failures in our own words."""
    try:
        yield
    except httpx.TransportError as error:
        raise InfraError(
            f"{url} cannot be reached: {error or type(error).__name__}",
            fix="deploy again, and see serve/server.log in WARPBEAM_HOME for why it went away",
            reason="endpoint_unreachable",
        ) from error
