"""What stands before every route: the token, and the size of the body.

Default-deny: only /health answers without the token, whatever routes are added later.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from warpbeam.serve.api_errors import ApiError, bad_request, body_too_large, unauthorized

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN_ENV = "WARPBEAM_SERVE_TOKEN"
"""The token where no file of it is given. Tokens never travel in Serve's configuration: Ray keeps that."""

OPEN_PATHS = frozenset({"/health"})
MAX_BODY_BYTES = 4 * 2**20
MAX_DRAINED_BYTES = 64 * 2**20
"""An oversized body is read to its end up to here: a client that is still sending would not see our answer."""


class Guard:
    """ASGI middleware that asks for `Authorization: Bearer TOKEN`.

    Args:
        token: None lets everybody in (loopback only; deploy.py sees to that).
    """

    def __init__(self, app: App, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._admits(scope):
            await send_error(unauthorized(), send)
        elif scope["type"] in ("http", "lifespan"):
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _admits(self, scope: Scope) -> bool:
        if self._token is None or scope["path"].removeprefix(scope.get("root_path", "")) in OPEN_PATHS:
            return True
        given = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        return hmac.compare_digest(token.strip(), self._token) and scheme.lower() == b"bearer"


async def read_json_object(receive: Receive, limit_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The request's body as a JSON object.

    Raises:
        ApiError: 413 or 400.
        ClientGone: the client hung up while sending.
    """
    parts: list[bytes] = []
    size = 0
    more = True
    while more and size <= MAX_DRAINED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body = message.get("body", b"")
        size += len(body)
        if size <= limit_bytes:
            parts.append(body)
        else:
            parts.clear()
        more = message.get("more_body", False)
    if size > limit_bytes:
        raise body_too_large(limit_bytes)
    return _decode(b"".join(parts))


class ClientGone(Exception):
    """Nobody is left to answer."""


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            # Escapes can write half of a surrogate pair, which is no text and which tokenizers choke on.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request(f"The body is not UTF-8: {error.reason} at byte {error.start}.") from error
    except UnicodeEncodeError as error:
        raise bad_request("The body holds an unpaired surrogate escape, which is no Unicode text.") from error
    except (ValueError, RecursionError) as error:
        raise bad_request(f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


async def send_error(error: ApiError, send: Send) -> None:
    """A whole response."""
    body = json.dumps(error.body()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    await send(
        {
            "type": "http.response.start",
            "status": error.status,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
