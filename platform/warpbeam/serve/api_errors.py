"""Errors in OpenAI's form: clients branch on `type` and `code`, people read `message`.

A mistake in the request is always 4xx and named before any byte of an answer is sent; 5xx means that we failed.
"""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """One refused request.

    Args:
        status: the HTTP status.
        message: what is wrong and, where it helps, what to send instead.
        param: the field of the request, if one is to blame.
        code: a stable word for programs.
        kind: OpenAI's `type`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The response's JSON."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str) -> ApiError:
    return bad_request(
        f"{param!r} is not supported by this server; leave it out", param=param, code="unsupported_parameter"
    )


def context_length_exceeded(*, context_tokens: int, prompt_tokens: int, param: str) -> ApiError:
    return bad_request(
        f"This model's maximum context length is {context_tokens} tokens, of which at least one must be left for the "
        f"answer. However, your {param} resulted in {prompt_tokens} tokens. Please reduce the length of the {param}.",
        param=param,
        code="context_length_exceeded",
    )


def model_not_found(asked: str, served: str) -> ApiError:
    return ApiError(
        404,
        f"The model {asked!r} does not exist. This server serves {served!r}.",
        param="model",
        code="model_not_found",
    )


def unauthorized() -> ApiError:
    return ApiError(
        401,
        "Incorrect or missing API key: send 'Authorization: Bearer TOKEN'.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def body_too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        413, f"The request's body is larger than the {limit_bytes} bytes allowed.", code="request_too_large"
    )


def engine_unavailable() -> ApiError:
    return ApiError(
        503,
        "The model's engine has ended and is being replaced; try again in a few seconds.",
        code="engine_unavailable",
        kind="server_error",
        headers={"Retry-After": "5"},
    )


def internal_error(request_id: str) -> ApiError:
    return ApiError(500, f"The server failed on this request (id {request_id}); its log says why.", kind="server_error")
