"""What the HTTP side asks of a generation engine, and nothing more.

Token ids in, token ids out: templates, text, stop strings and HTTP live above, so that transformers (here), vLLM and
the tests' scripted engine are exchangeable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from warpbeam.errors import WarpbeamError

FinishReason = Literal["stop", "length"]

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing logits by less overflows float32 and changes nothing."""


class EngineDead(WarpbeamError):
    """The engine's thread or process has ended; the replica must be replaced."""

    default_reason: ClassVar[str] = "engine_dead"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled; ranges are checked where they enter (schemas.py)."""

    max_tokens: int
    """New tokens at most, at least 1; prompt and answer together fit the context."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int | None = None
    seed: int | None = None
    """The same seed, prompt and model give the same tokens, whatever else is in the batch."""


@dataclass(frozen=True)
class TokenChunk:
    """New tokens of one request, in order."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    """Set on the last chunk; after `stop` the last id is the end-of-turn token: counted, never shown."""


@dataclass(frozen=True)
class EngineLimits:
    """What an engine can hold; known once it has started."""

    context_tokens: int
    """Prompt and answer of one request together."""
    batch_requests: int
    """Requests computed at the same time; more wait in the engine."""
    cache_tokens: int
    """Key/value cache, all requests together."""


@dataclass(frozen=True)
class EngineStats:
    """A moment's figures, for /health and logs."""

    requests: int
    """Accepted and not yet ended: running and waiting."""
    generated_tokens: int
    """Since the start."""


class Engine(Protocol):
    """One model on one device set. All methods are called from one event loop."""

    @property
    def limits(self) -> EngineLimits:
        """Raises RuntimeError before `start` has returned."""
        ...

    async def start(self) -> None:
        """Load, reserve the cache and warm up: when this returns, the first request is as fast as the next."""
        ...

    def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str
    ) -> AsyncGenerator[TokenChunk, None]:
        """Generate until the last chunk. Closing the generator cancels the request. Raises EngineDead."""
        ...

    def cancel(self, request_id: str) -> None:
        """Free the request's slot; its iterator ends. Unknown or ended ids are no error."""
        ...

    def stats(self) -> EngineStats: ...

    def healthy(self) -> bool:
        """False once the engine cannot answer any more."""
        ...

    async def stop(self) -> None:
        """End the engine's threads; requests in flight fail with EngineDead."""
        ...
