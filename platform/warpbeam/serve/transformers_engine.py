"""The light engine: transformers' continuous batching, on CPU or GPU, with sampling per request.

It needs nothing beyond torch and transformers, gives the same greedy tokens as `generate`, and is what the quickstart
and the tests serve with. vLLM comes behind the same interface.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.logits_process import LogitsProcessorList

from warpbeam.errors import UserError
from warpbeam.serve.cache_plan import PAGE_TOKENS, CachePlan, bytes_per_token, plan_cache
from warpbeam.serve.engine import EngineDead, EngineLimits, EngineStats, FinishReason, SamplingParams, TokenChunk
from warpbeam.serve.engine_options import EngineOptions
from warpbeam.serve.model_folder import ModelFolder
from warpbeam.serve.sampling import RowSampling, choose_tokens

logger = logging.getLogger(__name__)

WATCH_EVERY_S = 0.5
"""How often the generation thread is looked at while requests wait for it."""


@dataclass
class _Request:
    """One request in flight."""

    chunks: asyncio.Queue[TokenChunk | EngineDead | None] = field(default_factory=asyncio.Queue)
    """None: it was cancelled."""
    delivered: int = 0
    """Tokens passed on."""


class TransformersEngine:
    """See engine.Engine."""

    def __init__(self, folder: ModelFolder, options: EngineOptions) -> None:
        self._folder = folder
        self._options = options
        self._manager: Any = None
        self._limits: EngineLimits | None = None
        self._requests: dict[str, _Request] = {}
        self._generated_tokens = 0
        self._watcher: asyncio.Task[None] | None = None

    @property
    def limits(self) -> EngineLimits:
        if self._limits is None:
            raise RuntimeError("the engine has not started")
        return self._limits

    async def start(self) -> None:
        began = time.perf_counter()
        self._limits = await asyncio.to_thread(self._load)
        self._watcher = asyncio.create_task(self._watch())
        loaded = time.perf_counter()
        await self._warm_up()
        logger.info(
            "engine ready: load %.1f s, warm-up %.1f s, context %d tokens, cache %d tokens",
            loaded - began,
            time.perf_counter() - loaded,
            self.limits.context_tokens,
            self.limits.cache_tokens,
        )

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str
    ) -> AsyncGenerator[TokenChunk, None]:
        request = self._requests[request_id] = _Request()
        try:
            self._submit(prompt_ids, params, request_id)
            finished = False
            while not finished and (chunk := await request.chunks.get()) is not None:
                if isinstance(chunk, EngineDead):
                    raise chunk
                finished = chunk.finish_reason is not None
                yield chunk
        finally:
            self.cancel(request_id)

    def cancel(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        request.chunks.put_nowait(None)
        # A request that has ended by itself is no longer known to the router.
        if self._manager.output_router.result_handlers.pop(request_id, None) is not None:
            self._manager.cancel_request(request_id)

    def stats(self) -> EngineStats:
        return EngineStats(requests=len(self._requests), generated_tokens=self._generated_tokens)

    def healthy(self) -> bool:
        return (
            self._manager is not None
            and self._manager.is_running()
            and self._manager.background_thread_status.fatal_error is None
        )

    async def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._manager is not None:
            await asyncio.to_thread(self._manager.stop, block=True, timeout=10, hard_stop=True)
        self._fail_all("the engine was stopped")

    # -- requests ------------------------------------------------------------------------------------------------

    def _submit(self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str) -> None:
        if not self.healthy():  # whoever watches the thread has said so already, and looks no more
            raise EngineDead("the engine has ended and takes no requests")
        self._manager.register_result_handler(request_id, partial(self._deliver, request_id))
        accepted = self._manager.add_request(
            list(prompt_ids),
            request_id=request_id,
            max_new_tokens=params.max_tokens,
            streaming=True,
            sampling=RowSampling.of(params),
        )
        if accepted is None:
            raise EngineDead("the engine has ended and takes no requests")

    def _deliver(self, request_id: str, output: Any) -> None:
        """Called on the event loop with all of a request's tokens so far: pass on the new ones."""
        request = self._requests.get(request_id)
        if request is None:
            return
        if output.error is not None:
            request.chunks.put_nowait(EngineDead(f"the engine failed: {output.error}"))
            return
        new = tuple(output.generated_tokens[request.delivered :])
        request.delivered += len(new)
        self._generated_tokens += len(new)
        finish: FinishReason | None = None
        if output.is_finished():
            finish = "stop" if new and new[-1] in self._folder.end_ids else "length"
        request.chunks.put_nowait(TokenChunk(new, finish))

    def _fail_all(self, why: str) -> None:
        for request in self._requests.values():
            request.chunks.put_nowait(EngineDead(why))

    async def _watch(self) -> None:
        """A request put in after the thread's last breath is answered by nobody: notice and fail it."""
        while self.healthy():
            # What was under way to a request when it was cancelled lands in a queue that nobody else reads.
            while self._manager.get_result(timeout=0) is not None:
                pass
            await asyncio.sleep(WATCH_EVERY_S)
        error = self._manager.background_thread_status.fatal_error
        logger.error("the generation thread has ended: %s", error)
        self._fail_all(f"the engine has ended: {error}")

    # -- start ---------------------------------------------------------------------------------------------------

    def _load(self) -> EngineLimits:
        options = self._options
        device = options.device if options.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = options.dtype if options.dtype != "auto" else ("bfloat16" if device == "cuda" else "float32")
        try:
            model = AutoModelForCausalLM.from_pretrained(
                self._folder.path,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                attn_implementation="sdpa",
            )
        except (ValueError, OSError, RuntimeError, SafetensorError) as error:
            raise UserError(
                f"the weights in {self._folder.path} cannot be loaded: {error}",
                fix="export or copy the model again: a file may be cut off, or be another model's",
                reason="model_broken",
            ) from error
        model = model.eval().to(device)
        plan = self._plan(model, device)
        self._manager = self._build_manager(model, plan, device)
        if options.threads is not None:
            _compute_with(options.threads, self._manager)
        # The generation thread takes its caller's inference mode; warmup() reserves the cache here, where a
        # MemoryError still reaches whoever starts us.
        with torch.inference_mode():
            try:
                self._manager.warmup()
            except MemoryError as error:
                raise UserError(
                    f"the engine's cache of {plan.bytes / 2**30:.2f} GiB and its work space do not fit: {error}",
                    fix="lower cache_gib, batch_requests or context_tokens, or free memory",
                    reason="no_memory_for_engine",
                ) from error
            self._manager.start()
        return EngineLimits(
            context_tokens=plan.context_tokens, batch_requests=options.batch_requests, cache_tokens=plan.tokens
        )

    def _plan(self, model: Any, device: str) -> CachePlan:
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        if self._options.cache_gib is not None:
            budget = int(self._options.cache_gib * 2**30)
        else:
            budget = int(torch.cuda.mem_get_info()[0] * 0.6) if device == "cuda" else 2**30
        return plan_cache(
            bytes_per_token=bytes_per_token(
                layers=config.num_hidden_layers,
                heads=heads,
                kv_heads=getattr(config, "num_key_value_heads", None) or heads,
                head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
                step_tokens=self._step_tokens(device),
                bytes_per_value=model.dtype.itemsize,
            ),
            context_tokens=min(self._options.context_tokens or self._folder.max_positions, self._folder.max_positions),
            batch_requests=self._options.batch_requests,
            budget_bytes=budget,
        )

    def _step_tokens(self, device: str) -> int:
        """Tokens computed in one step: longer prompts are read in parts, so that others' answers go on."""
        return max(2048 if device == "cuda" else 512, self._options.batch_requests)

    def _build_manager(self, model: Any, plan: CachePlan, device: str) -> Any:
        manager = model.init_continuous_batching(
            # Greedy for transformers: the token is already chosen when its argmax looks (see _SamplingProcessor).
            generation_config=GenerationConfig(
                do_sample=False, eos_token_id=list(self._folder.end_ids) or -1, pad_token_id=0, max_new_tokens=1
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_TOKENS,
                num_blocks=plan.pages,
                max_requests_per_batch=self._options.batch_requests,
                max_batch_tokens=self._step_tokens(device),
                # Python runs between the steps (sampling per request), so steps are neither captured nor overlapped.
                use_cuda_graph=False,
                use_async_batching=False,
                # Would look for kernels on the network.
                auto_switch_to_flash=False,
            ),
        )
        never = torch.zeros(self._folder.vocabulary, dtype=torch.bool)
        never[self._folder.never_sampled()] = True
        processors = ContinuousBatchingLogitsProcessorList(
            LogitsProcessorList([_SamplingProcessor(never.to(device) if bool(never.any()) else None)])
        )
        processors.tensors_required = 1  # it keeps a row of numbers for each of its own kind, ours is unused
        manager.logit_processor = processors
        return manager

    async def _warm_up(self) -> None:
        """First calls pay for thread pools and kernels: run a long prefill and both ways of sampling."""
        prompt = [self._folder.end_ids[0] if self._folder.end_ids else 0]
        length = max(1, min(64, self.limits.context_tokens - 4))
        runs = [
            self._drain(prompt * length, SamplingParams(max_tokens=4, temperature=0.0), "warm-up-greedy"),
            self._drain(prompt, SamplingParams(max_tokens=4, top_p=0.9, seed=0), "warm-up-sampled"),
        ]
        await asyncio.gather(*runs)

    async def _drain(self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str) -> None:
        async with aclosing(self.generate(prompt_ids, params, request_id)) as chunks:
            async for _ in chunks:
                pass


def _compute_with(threads: int, manager: Any) -> None:
    """Set the CPU threads where they count: OpenMP keeps the number for each thread that computes, and a Ray worker's
    others have one."""
    usual = manager._run_generation_loop

    def run(**options: Any) -> None:
        torch.set_num_threads(threads)
        usual(**options)

    manager._run_generation_loop = run


class _SamplingProcessor(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Chooses every row's token by the row's own parameters, and hands transformers scores whose argmax it is."""

    supported_kwargs = {"sampling": RowSampling}  # noqa: RUF012  (transformers' own declaration)
    ignored_kwargs = ()

    def __init__(self, never: torch.Tensor | None) -> None:
        self._never = never
        self._rows: list[RowSampling] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        self._rows = [request.state.logit_processor_kwargs["sampling"] for request in requests_with_new_token]
        return torch.zeros(len(self._rows), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        # Rows beyond these belong to prompts that are still being read; their token is not looked at.
        rows = len(self._rows)
        chosen = choose_tokens(scores[:rows], self._rows, self._never)
        decided = torch.zeros_like(scores)
        decided[torch.arange(rows, device=scores.device), chosen] = 1.0
        return decided
