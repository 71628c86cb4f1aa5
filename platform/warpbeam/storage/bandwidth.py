"""A cap on how fast bytes leave a process, so that a checkpoint's upload leaves the network to the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Bandwidth:
    """At most `bytes_per_s` over everything that shares this object, from any thread.

    Whoever wants to send asks for a turn first: turns are given one after the other, each as long as its bytes take at
    the cap. What is sent within a turn goes as fast as it can, so a burst is one turn (a part of an upload), and the
    mean over several is the cap.
    """

    def __init__(self, bytes_per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"a bandwidth must be more than 0 bytes a second, got {bytes_per_s}")
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._taken_until = float("-inf")

    def reserve(self, size: int) -> float:
        """Take the next turn, for `size` bytes; returns the seconds until it begins, for the caller to wait."""
        with self._lock:
            now = self._clock()
            begin = max(now, self._taken_until)
            self._taken_until = begin + size / self.bytes_per_s
            return begin - now


def wait_turn(size: int, limit: Bandwidth | None, cancel: threading.Event | None) -> bool:
    """Wait until `size` bytes may go; False as soon as the caller has given up."""
    delay_s = 0.0 if limit is None else limit.reserve(size)
    if cancel is None:
        time.sleep(delay_s)
        return True
    return not (cancel.wait(delay_s) if delay_s > 0 else cancel.is_set())
