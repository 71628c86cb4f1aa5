"""What a request may say, checked strictly before anything is computed.

Nothing is ignored silently: a field is honoured, or has no effect on the answer and is in INERT, or is accepted only at
the value that means "off" (NEUTRAL), or is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from warpbeam.serve.api_errors import ApiError, bad_request, unsupported

MAX_STOPS = 4
MAX_CHOICES = 32
"""Prompts times n of one request."""

INERT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""OpenAI's fields that do not change the answer."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0, 0.0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "presence_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None,),
    "web_search_options": (None,),
}
"""Features this server does not have, and the values that ask for nothing."""

MESSAGE_FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"})
"""What `encode_chat` passes to templates."""

PromptItem = str | list[int]


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(BaseModel):
    """What both completion routes share."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Not OpenAI's; vLLM's name."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: list[str] = []
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _check_stop(cls, value: Any) -> list[str]:
        stops = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
            raise ValueError("must be a string or a list of strings")
        if len(stops) > MAX_STOPS:
            raise ValueError(f"holds {len(stops)} sequences, at most {MAX_STOPS} are allowed")
        if "" in stops:
            raise ValueError("holds an empty string, which would match everywhere")
        return stops

    @model_validator(mode="after")
    def _check_stream_options(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed with stream: true")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: list[PromptItem]

    @field_validator("prompt", mode="before")
    @classmethod
    def _check_prompt(cls, value: Any) -> list[PromptItem]:
        prompts: list[Any] = value if isinstance(value, list) and not _is_token_ids(value) else [value]
        if not prompts or not all(isinstance(prompt, str) or _is_token_ids(prompt) for prompt in prompts):
            raise ValueError("must be a string, a list of strings, a list of token ids or a list of such lists")
        return prompts


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    """Roles and contents are `encode_chat`'s to check."""
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @field_validator("messages", mode="after")
    @classmethod
    def _check_fields(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Null fields, which clients send back from earlier answers, count as absent."""
        present = [{key: value for key, value in message.items() if value is not None} for message in messages]
        for message in present:
            if unknown := sorted(set(message) - MESSAGE_FIELDS):
                raise ValueError(f"a message has the field {unknown[0]!r}, which is not supported")
        return present

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ; send max_completion_tokens only")
        return self


RequestT = TypeVar("RequestT", bound=GenerationRequest)


def parse_request(schema: type[RequestT], body: dict[str, Any]) -> RequestT:
    """Check a decoded body.

    Raises:
        ApiError: 400, naming the first field that is wrong.
    """
    fields = {}
    for key, value in body.items():
        if key in INERT:
            continue
        if key in NEUTRAL:
            # By type too: `logprobs: 0` asks for something, `logprobs: false` does not.
            if not any(type(value) is type(neutral) and value == neutral for neutral in NEUTRAL[key]):
                raise unsupported(key)
            continue
        fields[key] = value
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise _as_api_error(error) from error


def _as_api_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    if first["type"] == "extra_forbidden":
        return bad_request(f"Unrecognized request argument supplied: {param}", param=param, code="unknown_parameter")
    if first["type"] == "missing":
        return bad_request(f"You must provide {param!r}.", param=param, code="missing_required_parameter")
    problem = first["msg"].removeprefix("Value error, ")
    return bad_request(
        f"Invalid value for {param!r}: {problem}" if param else problem, param=param, code="invalid_value"
    )


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(item) is int for item in value)
