"""Where the time went: every second of a process in exactly one bucket.

Goodput is only believable when the buckets add up to wall time, so time is never measured piecewise: one clock runs,
and what changes is the name of the bucket that it fills. `totals()` therefore sums to the elapsed time by
construction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum


class Phase(StrEnum):
    """The buckets of DESIGN §5.10, in the order in which reports show them."""

    QUEUE = "queue"
    PULL = "pull"
    START = "start"
    PREPARE = "prepare"
    COMPUTE = "compute"
    DATA_WAIT = "data_wait"
    CHECKPOINT = "checkpoint"
    RECOMPUTE = "recompute"
    HANG = "hang"
    IDLE = "idle"


class PhaseClock:
    """A stopwatch with one hand and ten dials.

    `switch` changes the phase that runs when nothing more special does; `phase` enters one for the length of a `with`
    block and falls back to what ran before. Only one thread may enter phases; any thread may read `totals`. `age_s`
    seconds before the clock was made count as the first phase.
    """

    def __init__(
        self, first: str = Phase.START, now: Callable[[], float] = time.monotonic, *, age_s: float = 0.0
    ) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._totals_s = dict.fromkeys(Phase, 0.0)
        self._stack = [Phase(first)]
        self._since = now() - age_s

    @property
    def current(self) -> str:
        """The bucket being filled at this moment."""
        return self._stack[-1].value

    def switch(self, name: str) -> None:
        """From now on, time outside any `phase` block belongs to `name`."""
        with self._lock:
            self._charge()
            self._stack[0] = Phase(name)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the time of the block to `name`; nested blocks charge their own name instead."""
        with self._lock:
            self._charge()
            self._stack.append(Phase(name))
        try:
            yield
        finally:
            with self._lock:
                self._charge()
                self._stack.pop()

    def totals(self) -> dict[str, float]:
        """Seconds by bucket up to this moment; they add up to the clock's age."""
        with self._lock:
            self._charge()
            return {phase.value: seconds for phase, seconds in self._totals_s.items()}

    def _charge(self) -> None:
        now = self._now()
        self._totals_s[self._stack[-1]] += now - self._since
        self._since = now


def set_apart(totals: Mapping[str, float], seconds: float, name: Phase) -> dict[str, float]:
    """Buckets in which up to `seconds` of `compute`, then of `idle`, are called `name` instead; the sum stays."""
    out = dict(totals)
    for source in (Phase.COMPUTE.value, Phase.IDLE.value):
        moved = min(seconds, out.get(source, 0.0))
        out[source] = out.get(source, 0.0) - moved
        out[name.value] = out.get(name.value, 0.0) + moved
        seconds -= moved
    return out


def place_ranks(
    driver: Mapping[str, float], window_s: float, before_s: float, ranks: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The buckets of a whole attempt: what the ranks measured, laid into the driver's window around them.

    Args:
        driver: the driver's own buckets, without the window in which ranks had the word to train.
        window_s: the length of that window.
        before_s: how much of it had passed when the ranks' clocks began.
        ranks: the last known totals of each rank; a rank that was killed stopped reporting before its end.

    Returns:
        Seconds by bucket that add up to `sum(driver) + window_s`. Ranks are averaged. What was before them is `start`,
        what was after their last word is `idle`; when they report more than fits they are scaled to it.
    """
    out = {phase.value: driver.get(phase.value, 0.0) for phase in Phase}
    mean = {phase.value: sum(rank.get(phase.value, 0.0) for rank in ranks) / max(1, len(ranks)) for phase in Phase}
    before_s = min(max(0.0, before_s), window_s) if ranks else window_s
    reported_s = sum(mean.values())
    scale = min(1.0, (window_s - before_s) / reported_s) if reported_s > 0 else 0.0
    for name, seconds in mean.items():
        out[name] += seconds * scale
    out[Phase.START.value] += before_s
    out[Phase.IDLE.value] += window_s - before_s - reported_s * scale
    return out
