"""Runs an iterator ahead in a thread, so that reading the next batch overlaps with computing on this one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """Ends the producer's thread quietly."""


class Prefetch(Generic[T]):
    """An iterator whose items are made by a thread, up to `depth` ahead.

    An exception of the producer is raised at the consumer's next item. `close` (also the end of a `with`) ends and
    joins the thread.

    Args:
        produce: makes the items; waits only by the `pause(seconds)` that it is given, which `close` cuts short.
    """

    def __init__(self, produce: Callable[[Callable[[float], None]], Iterator[T]], depth: int) -> None:
        self._produce = produce
        self._depth = depth
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="warpbeam-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Prefetch[T]:
        return self

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self) -> None:
        self._closing.set()
        with self._changed:
            self._ready.clear()
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            for item in self._produce(self._pause):
                with self._changed:
                    self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closing.is_set())
                    if self._closing.is_set():
                        return
                    self._ready.append(item)
                    self._changed.notify_all()
        except Closed:
            pass
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise Closed
