"""Trying again while a store is away: longer than one operation's own retries, where somebody can afford to wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from warpbeam.errors import InfraError

T = TypeVar("T")

AWAY: Final = frozenset({"store_unreachable", "store_failed", "size_mismatch"})
"""Reasons that pass by themselves; refused credentials, a full disk or a newer claim do not."""
LIMIT_S: Final = 300.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


def patiently(
    work: Callable[[], T],
    *,
    limit_s: float = LIMIT_S,
    on_trouble: Callable[[InfraError], None] = lambda error: None,
    sleep: Callable[[float], object] | None = None,
) -> T:
    """What `work` returns, however often the store was away before; after `limit_s` its last error is raised.

    Args:
        on_trouble: told each error that is tried again.
        sleep: waits so many seconds; one that returns earlier makes `work` be tried at once.
    """
    options = {} if sleep is None else {"sleep": sleep}
    retrying = Retrying(
        retry=retry_if_exception(is_away),
        stop=stop_after_delay(limit_s),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        before_sleep=lambda state: on_trouble(state.outcome.exception()),  # type: ignore[union-attr,arg-type]
        reraise=True,
        **options,  # type: ignore[arg-type]
    )
    return retrying(work)


def is_away(error: BaseException) -> bool:
    """Whether waiting may help."""
    return isinstance(error, InfraError) and error.reason in AWAY
