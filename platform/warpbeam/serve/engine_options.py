"""What an operator may set about an engine, checked before anything is started."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warpbeam.errors import UserError


class EngineOptions(BaseModel):
    """`engine:` of a Serve application; `engine` of deploy()."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: float32 on CPUs, bfloat16 on GPUs."""
    context_tokens: Annotated[int, Field(ge=1)] | None = None
    """Shorten the context to save memory; None: the model's own."""
    batch_requests: Annotated[int, Field(ge=1, le=512)] = 32
    """Requests computed at the same time."""
    cache_gib: Annotated[float, Field(gt=0)] | None = None
    """Key/value cache and its work space at most; None: 1 GiB on CPUs, 60% of the free memory on GPUs."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads of the computation; None: torch's own choice."""


def check_options(given: dict[str, Any]) -> EngineOptions:
    """Options from a command line or a file.

    Raises:
        UserError: naming the first one that is wrong.
    """
    try:
        return EngineOptions.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(
            f"engine option {'.'.join(map(str, first['loc']))}: {first['msg']}",
            fix=f"known are {', '.join(EngineOptions.model_fields)}",
            reason="bad_engine_option",
        ) from error
