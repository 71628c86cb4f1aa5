"""Says where a rank stands still: the stacks of all its threads, written without the interpreter's help.

A rank that hangs in a collective or in native code runs no Python any more, so nothing in Python could tell. The
watchdog of `faulthandler` is a C thread: unless it is touched in time it writes every thread's stack to standard error,
which the record keeps as the rank's log.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable

_TOUCH_S = 1.0
_STDERR = 2


class Watchdog:
    """Waits for `touch`; once it has not come for `limit_s`, writes stacks, and ends the process if `ends` says so.

    Args:
        ends: exit with status 1 after the stacks: for launchers that watch processes and not progress.
    """

    def __init__(self, limit_s: float, *, ends: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._ends = ends
        self._now = now
        self._touched_at = float("-inf")

    def touch(self) -> None:
        """There was progress. Cheap enough for every micro-batch: the clock of C is set once a second."""
        if self._now() - self._touched_at >= _TOUCH_S:
            self._touched_at = self._now()
            faulthandler.dump_traceback_later(self._limit_s, exit=self._ends, file=_STDERR)

    def stop(self) -> None:
        """Nothing is waited for any more."""
        faulthandler.cancel_dump_traceback_later()
