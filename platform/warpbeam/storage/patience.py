"""Trying again while a store is away: longer than one operation's own retries, where somebody can afford to wait.

A person who types a command wants to know in seconds that a store cannot be reached. A process that trains has hours
behind it: it opens its store as a `PatientStore`, and an outage of minutes costs it nothing but those minutes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from warpbeam.errors import InfraError
from warpbeam.storage.bandwidth import Bandwidth
from warpbeam.storage.store import Names, ObjectInfo, ObjectStore, Unfinished

logger = logging.getLogger(__name__)
T = TypeVar("T")

AWAY: Final = frozenset({"store_unreachable", "store_failed", "size_mismatch"})
"""Reasons that pass by themselves; refused credentials, a full disk or a newer claim do not."""
LIMIT_S: Final = 300.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 10.0


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


def _warn(error: InfraError) -> None:
    logger.warning("waiting for the store: %s", error.what)


class PatientStore:
    """Another store, each operation of which waits up to `LIMIT_S` while the store is away.

    A body that breaks off in the middle of `open_stream` is the inner store's affair.

    Args:
        on_trouble: told once for each operation that waits.
    """

    def __init__(self, store: ObjectStore, on_trouble: Callable[[InfraError], None] = _warn) -> None:
        self.uri = store.uri
        self._store = store
        self._on_trouble = on_trouble
        self._limit_s = LIMIT_S

    def __repr__(self) -> str:
        return f"PatientStore({self._store!r})"

    def give_up(self) -> None:
        """From now on every operation is tried once, as by the store itself: somebody wants an end."""
        self._limit_s = 0.0

    def _wait(self, work: Callable[[], T], sleep: Callable[[float], object] | None = None) -> T:
        told: list[InfraError] = []

        def tell(error: InfraError) -> None:
            if not told:
                self._on_trouble(error)
            told.append(error)

        return patiently(work, on_trouble=tell, limit_s=self._limit_s, sleep=sleep)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._wait(lambda: self._store.get(key, start, length))

    def put(self, key: str, data: bytes) -> None:
        self._wait(lambda: self._store.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._wait(lambda: self._store.put_if_absent(key, data))

    def upload(
        self, path: Path, key: str, *, limit: Bandwidth | None = None, cancel: threading.Event | None = None
    ) -> None:
        sleep = None if cancel is None else cancel.wait
        self._wait(lambda: self._store.upload(path, key, limit=limit, cancel=cancel), sleep)

    def download(self, key: str, path: Path, *, hashed: bool = False) -> str:
        return self._wait(lambda: self._store.download(key, path, hashed=hashed))

    def head(self, key: str) -> ObjectInfo | None:
        return self._wait(lambda: self._store.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from self._wait(lambda: [*self._store.list(prefix)])

    def list_dirs(self, prefix: str) -> Names:
        return self._wait(lambda: self._store.list_dirs(prefix))

    def delete(self, key: str) -> None:
        self._wait(lambda: self._store.delete(key))

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        yield from self._wait(lambda: [*self._store.unfinished(prefix)])

    def discard(self, left: Unfinished) -> None:
        self._wait(lambda: self._store.discard(left))

    def open_stream(self, key: str) -> BinaryIO:
        return self._wait(lambda: self._store.open_stream(key))
