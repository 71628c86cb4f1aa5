"""Where a process stands in its loop, since when, and how long it usually stands there.

A heartbeat says it, and the monitor (`record.monitor`) compares ranks by it. A mark costs less than a microsecond, so a
loop may pass many in a step; everything else is worked out when a heartbeat is sent.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import psutil

KEPT = 64
"""Completed stays in a phase whose length is remembered: more than lie between two saves or evaluations, mostly."""
LOOK_S = 15.0
UNKNOWN_S = 60.0
"""How long a phase may last before its process looks at itself: where it usually lasts so long or less, and where
nobody knows (a first step compiles, loads, connects)."""


class StandingPoint:
    """The loop's thread calls `mark`; any thread may read.

    `seq` counts what all ranks of a run pass alike (a batch begun, a step ended), so it orders them.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._since = now()
        self._lengths: dict[str, deque[float]] = {}
        self._spent: dict[str, float] = {}
        self._thread = threading.get_ident()
        self.phase: str | None = None
        self.seq = 0
        self.left = False
        """Whether the loop over batches has ended, for this process."""

    def mark(self, phase: str | None, *, passes: bool = False) -> None:
        """The loop is in `phase` from here on; once more the same one is a sign of life in it.

        Args:
            passes: count this one in `seq`.
        """
        now = self._now()
        before, length = self.phase, now - self._since
        if before is not None:
            self._spent[before] = self._spent.get(before, 0.0) + length
            lengths = self._lengths.get(before)
            if lengths is None:
                lengths = self._lengths[before] = deque(maxlen=KEPT)
            lengths.append(length)
        self.phase, self._since = phase, now
        if passes:
            self.left = False
            self.seq += 1
            self._thread = threading.get_ident()

    def since_s(self) -> float:
        """How long it has stood here."""
        return self._now() - self._since

    def usual_s(self) -> float | None:
        """The longest of this phase's remembered stays; None while it has never been left. Once there are others, the
        first does not count: it compiles, loads and connects."""
        lengths = list(self._lengths.get(self.phase or "", ()))
        return max(lengths[1:] if 2 < len(lengths) < KEPT else lengths, default=None)

    def is_late(self) -> bool:
        """Whether it is time for a closer look: not yet an alarm."""
        usual_s = self.usual_s()
        return self.since_s() > (UNKNOWN_S if usual_s is None else max(LOOK_S, 2 * usual_s))

    def report(self) -> dict[str, Any]:
        """The part of a heartbeat that the monitor reads."""
        usual_s = self.usual_s()
        told: dict[str, Any] = {
            "seq": self.seq,
            "left": self.left,
            "in_phase_s": round(self.since_s(), 3),
            "usual_s": None if usual_s is None else round(usual_s, 3),
            "spent": {phase: round(seconds, 3) for phase, seconds in list(self._spent.items())},
        }
        if self.is_late():
            told |= {"stack": self._stack(), "cpu_s": round(_processor_s(), 3)}
        return told

    def _stack(self) -> int:
        """A number that changes when the loop's thread is somewhere else."""
        frame = sys._current_frames().get(self._thread)
        text = ""
        while frame is not None:
            text += f"{frame.f_code.co_filename}:{frame.f_lineno};"
            frame = frame.f_back
        return zlib.crc32(text.encode())


def _processor_s() -> float:
    """Processor time of this process and of those it has started: an evaluation may be one of them."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        try:
            spent = child.cpu_times()
        except psutil.Error:
            continue
        total += spent.user + spent.system
    return total
