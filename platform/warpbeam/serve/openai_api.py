"""The OpenAI routes over a Service, as a Starlette application.

Starlette, not FastAPI: validation, error shape and streaming are OpenAI's here, and the application is built inside the
replica, so nothing of it is pickled by Ray Serve.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from warpbeam.serve.answer import Answer, all_pieces
from warpbeam.serve.api_errors import ApiError, engine_unavailable, internal_error, model_not_found
from warpbeam.serve.engine import EngineDead
from warpbeam.serve.event_stream import EventStream, unless_client_goes
from warpbeam.serve.guard import ClientGone, Guard, read_json_object
from warpbeam.serve.schemas import ChatRequest, CompletionRequest, GenerationRequest, parse_request
from warpbeam.serve.service import Service
from warpbeam.serve.wire import ChatWire, CompletionWire, Wire, usage

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
"""nginx's word for it; nobody reads the response."""


def build_asgi_app(service: Service, token: str | None) -> Starlette:
    """The HTTP side of a model.

    Args:
        token: what clients must send; None for loopback only.
    """
    routes = Routes(service)
    return Starlette(
        routes=[
            Route("/health", routes.health),
            Route("/v1/models", routes.models),
            Route("/v1/models/{model:path}", routes.model),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/chat/completions", routes.chat_completions, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            EngineDead: _engine_dead,
            ClientGone: _client_gone,
            Exception: _unexpected_error,
        },
    )


class Routes:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, _: Request) -> Response:
        stats = self._service.engine.stats()
        healthy = self._service.engine.healthy()
        return JSONResponse(
            {
                "status": "ok" if healthy else "engine_dead",
                "requests": stats.requests,
                "generated_tokens": stats.generated_tokens,
            },
            status_code=200 if healthy else 503,
        )

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_card()]})

    async def model(self, request: Request) -> Response:
        asked = request.path_params["model"]
        if asked != self._service.name:
            raise model_not_found(asked, self._service.name)
        return JSONResponse(self._model_card())

    async def completions(self, request: Request) -> Response:
        body = parse_request(CompletionRequest, await read_json_object(request.receive))
        answers = await self._service.completion_answers(body)
        return await self._respond(request, body, answers, CompletionWire(self._service.name))

    async def chat_completions(self, request: Request) -> Response:
        body = parse_request(ChatRequest, await read_json_object(request.receive))
        answers = await self._service.chat_answers(body)
        return await self._respond(request, body, answers, ChatWire(self._service.name))

    async def _respond(
        self, request: Request, body: GenerationRequest, answers: Sequence[Answer], wire: Wire
    ) -> Response:
        if body.stream:
            return EventStream(self._events(answers, wire, body.include_usage))
        return JSONResponse(await unless_client_goes(request.receive, self._whole(answers, wire)))

    async def _whole(self, answers: Sequence[Answer], wire: Wire) -> dict[str, Any]:
        texts = [""] * len(answers)
        reasons = [""] * len(answers)
        async with aclosing(all_pieces(answers, self._service.engine)) as pieces:
            async for piece in pieces:
                texts[piece.choice] += piece.text
                reasons[piece.choice] = piece.finish_reason or ""
        return wire.whole(texts, reasons, usage(answers))

    async def _events(
        self, answers: Sequence[Answer], wire: Wire, include_usage: bool
    ) -> AsyncGenerator[dict[str, Any]]:
        """The stream's events. An error in the middle is the last one."""
        blank = {"usage": None} if include_usage else {}
        try:
            async with aclosing(all_pieces(answers, self._service.engine)) as pieces:
                for chunk in wire.opening(len(answers)):
                    yield {**chunk, **blank}
                async for piece in pieces:
                    for chunk in wire.chunks(piece):
                        yield {**chunk, **blank}
        except EngineDead as error:
            logger.error("a stream was cut: %s", error)
            yield engine_unavailable().body()
            return
        except Exception:
            error_id = uuid4().hex
            logger.exception("request %s failed in mid-stream", error_id)
            yield internal_error(error_id).body()
            return
        if include_usage:
            yield {**wire.closing(), "usage": usage(answers)}

    def _model_card(self) -> dict[str, Any]:
        service = self._service
        return {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "warpbeam",
            "max_model_len": service.engine.limits.context_tokens,
            "notes": list(service.folder.notes),
        }


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    return JSONResponse(ApiError(error.status_code, message).body(), status_code=error.status_code)


async def _engine_dead(request: Request, error: Exception) -> Response:
    logger.error("a request failed: %s", error)
    return await _api_error(request, engine_unavailable())


async def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _unexpected_error(_: Request, error: Exception) -> Response:
    error_id = uuid4().hex
    logger.error("request %s failed", error_id, exc_info=error)
    return JSONResponse(internal_error(error_id).body(), status_code=500)
