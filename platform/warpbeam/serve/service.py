"""A served model: requests become prompts and answers, by one set of rules for every route.

Rule for lengths: a prompt must leave at least one token of the context for the answer, else it is refused with both
counts; a `max_tokens` that does not fit beside the prompt is shortened to what is left (finish_reason `length`).
Without `max_tokens`, chat may use all that is left and text completions get 16, as with OpenAI.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar
from uuid import uuid4

from warpbeam.data.chat import TRAINING_DATE, encode_chat
from warpbeam.errors import UserError
from warpbeam.serve.answer import Answer
from warpbeam.serve.api_errors import bad_request, context_length_exceeded, engine_unavailable, model_not_found
from warpbeam.serve.engine import Engine, SamplingParams
from warpbeam.serve.model_folder import ModelFolder
from warpbeam.serve.schemas import MAX_CHOICES, ChatRequest, CompletionRequest, GenerationRequest, PromptItem

COMPLETION_MAX_TOKENS = 16

ResultT = TypeVar("ResultT")


class Service:
    """One model behind the HTTP routes.

    Args:
        name: what requests must call the model.
        folder: its tokenizer, template and end tokens.
        engine: started by the caller.
    """

    def __init__(self, name: str, folder: ModelFolder, engine: Engine) -> None:
        self.name = name
        self.folder = folder
        self.engine = engine
        self.created = int(time.time())
        # Long prompts take seconds to tokenise; one thread, because fast tokenizers do not like several.
        self._tokenizing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")

    async def chat_answers(self, request: ChatRequest) -> list[Answer]:
        """Check a chat request and prepare its answers.

        Raises:
            ApiError: the request cannot be answered.
        """
        self._check_available(request)
        if self.folder.chat_template is None:
            raise bad_request(
                f"The model {self.name!r} has no chat template, so conversations cannot be rendered. Use "
                "/v1/completions, or add the template that the model was trained with as chat_template.jinja to its "
                "folder and deploy again.",
                code="no_chat_template",
            )
        prompt = await self._tokenize(lambda: self._encode_chat(request))
        limit = request.max_completion_tokens or request.max_tokens or self.engine.limits.context_tokens
        return self._answers(request, [prompt], limit, "messages")

    async def completion_answers(self, request: CompletionRequest) -> list[Answer]:
        """Check a text completion request and prepare its answers, prompt by prompt.

        Raises:
            ApiError: the request cannot be answered.
        """
        self._check_available(request)
        prompts = await self._tokenize(lambda: [self._encode_prompt(item) for item in request.prompt])
        return self._answers(request, prompts, request.max_tokens or COMPLETION_MAX_TOKENS, "prompt")

    def _check_available(self, request: GenerationRequest) -> None:
        if request.model != self.name:
            raise model_not_found(request.model, self.name)
        if not self.engine.healthy():
            raise engine_unavailable()

    async def _tokenize(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work)

    def _encode_chat(self, request: ChatRequest) -> list[int]:
        try:
            ids, _ = encode_chat(
                self.folder.tokenizer, request.messages, add_generation_prompt=True, date_string=TRAINING_DATE
            )
        except UserError as error:
            raise bad_request(str(error), param="messages", code=error.reason) from error
        return [int(token_id) for token_id in ids]

    def _encode_prompt(self, prompt: PromptItem) -> list[int]:
        ids: list[int] = list(self.folder.tokenizer(prompt).input_ids) if isinstance(prompt, str) else prompt
        return ids

    def _answers(
        self, request: GenerationRequest, prompts: Sequence[Sequence[int]], max_tokens: int, param: str
    ) -> list[Answer]:
        n = request.n or 1
        if len(prompts) * n > MAX_CHOICES:
            raise bad_request(f"{len(prompts)} prompts times n={n} is more than {MAX_CHOICES} answers.", param="n")
        request_id = uuid4().hex
        answers: list[Answer] = []
        for prompt in prompts:
            params = self._params(request, prompt, max_tokens, param)
            for _ in range(n):
                choice = len(answers)
                seeded = params if params.seed is None else replace(params, seed=_wrap(params.seed + choice))
                answers.append(
                    Answer(
                        choice,
                        prompt,
                        seeded,
                        request.stop,
                        decode=self.folder.decode,
                        request_id=f"{request_id}-{choice}",
                    )
                )
        return answers

    def _params(self, request: GenerationRequest, prompt: Sequence[int], max_tokens: int, param: str) -> SamplingParams:
        context = self.engine.limits.context_tokens
        if not prompt:
            raise bad_request(f"The {param} is empty.", param=param)
        if len(prompt) >= context:
            raise context_length_exceeded(context_tokens=context, prompt_tokens=len(prompt), param=param)
        if (outside := next((token for token in prompt if not 0 <= token < self.folder.vocabulary), None)) is not None:
            raise bad_request(
                f"The {param} holds the token id {outside}; this model knows 0 to {self.folder.vocabulary - 1}.",
                param=param,
            )
        defaults = self.folder.defaults
        return SamplingParams(
            max_tokens=min(max_tokens, context - len(prompt)),
            temperature=defaults.temperature if request.temperature is None else request.temperature,
            top_p=defaults.top_p if request.top_p is None else request.top_p,
            top_k=request.top_k or defaults.top_k,
            seed=request.seed,
        )


def _wrap(seed: int) -> int:
    """Into int64: the choices of one request have different seeds."""
    return (seed + 2**63) % 2**64 - 2**63
