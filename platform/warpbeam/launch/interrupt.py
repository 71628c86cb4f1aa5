"""Ctrl-C and SIGTERM while a run is on: the first asks, the second insists.

The first makes the ranks stop at a step that they agree on, with a checkpoint. Whoever presses again does not want to
wait.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Killed(Exception):
    """The second signal: end everything now."""


class Interrupts:
    """While active, counts signals; only possible on the main thread, elsewhere it does nothing.

    The second signal raises `Killed` out of whatever the main thread does.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._before: dict[int, Any] = {}
        self.requested = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise Killed
        self.requested = True
        self._on_first()
