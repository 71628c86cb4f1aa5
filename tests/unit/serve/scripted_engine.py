"""An engine stepped by hand: it says exactly what its script says, when the test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field

from warpbeam.serve.engine import EngineDead, EngineLimits, EngineStats, FinishReason, SamplingParams, TokenChunk


@dataclass
class Asked:
    """One request as the engine saw it."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    request_id: str


@dataclass
class ScriptedEngine:
    """Answers every request with `script`; with `held`, only as far as the test has called `step`."""

    script: list[TokenChunk | EngineDead] = field(default_factory=list)
    held: bool = False
    context_tokens: int = 256
    alive: bool = True
    asked: list[Asked] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    _steps: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def say(self, token_ids: Iterable[int], finish_reason: FinishReason = "stop", end_id: int = 1) -> None:
        """One token a chunk; after `stop` the end token as the last."""
        ids = [*token_ids, *([end_id] if finish_reason == "stop" else [])]
        self.script = [TokenChunk((token_id,)) for token_id in ids[:-1]]
        self.script.append(TokenChunk(tuple(ids[-1:]), finish_reason))

    def step(self, chunks: int = 1) -> None:
        for _ in range(chunks):
            self._steps.release()

    @property
    def limits(self) -> EngineLimits:
        return EngineLimits(context_tokens=self.context_tokens, batch_requests=4, cache_tokens=1024)

    async def start(self) -> None:
        return None

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str
    ) -> AsyncGenerator[TokenChunk, None]:
        self.asked.append(Asked(tuple(prompt_ids), params, request_id))
        self.running.add(request_id)
        try:
            for chunk in self.script[: params.max_tokens] if not self.held else self.script:
                if self.held:
                    await self._steps.acquire()
                else:
                    await asyncio.sleep(0)
                if isinstance(chunk, EngineDead):
                    self.alive = False
                    raise chunk
                yield chunk
        finally:
            self.cancel(request_id)

    def cancel(self, request_id: str) -> None:
        self.running.discard(request_id)
        self.closed.append(request_id)

    def stats(self) -> EngineStats:
        return EngineStats(requests=len(self.running), generated_tokens=0)

    def healthy(self) -> bool:
        return self.alive

    async def stop(self) -> None:
        self.alive = False
