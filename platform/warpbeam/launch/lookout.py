"""The driver's eye on its ranks: when to read their heartbeats, and what it has found (`record.monitor`).

While rows come at their usual pace there is nothing to find but a slow rank, and three reads a minute do. Once they
stay away, heartbeats are read as often as they are written. However many ranks there are, reading takes a fiftieth of
the driver's time at most.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from warpbeam.record.monitor import LATE_S, Beat, Finding, Look, findings
from warpbeam.record.view import RunView
from warpbeam.record.writer import HEARTBEAT_S

CALM_READ_S = 20.0
QUIET_S = LATE_S / 2
"""Without a row for so long the heartbeats are looked at."""
COST = 50.0
HISTORY = 12
"""Looks that are kept: a minute of trouble, or the minutes over which a slow rank is judged."""
SLOW_TWICE = 2
"""Judged slow in so many looks one after another, before it is told."""


class Lookout:
    """`look` is called on every tick of the driver and seldom reads."""

    def __init__(self, view: RunView, attempt: str, now: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._attempt = attempt
        self._now = now
        self._looks: deque[Look] = deque(maxlen=HISTORY)
        self._read_at = now()
        self._cost_s = 0.0
        self._told: set[tuple[str, int | None, bool]] = set()
        self._slow: list[int] = []
        self.beats: dict[str, dict[str, Any]] = {}
        """The newest heartbeats as they are in the record, by rank."""

    def look(self, quiet_s: float) -> list[Finding]:
        """What is new. The store's errors are the caller's.

        Args:
            quiet_s: how long no row has come.
        """
        pace_s = max(CALM_READ_S if quiet_s < QUIET_S else HEARTBEAT_S, COST * self._cost_s)
        if self._now() - self._read_at < pace_s:
            return []
        return self.read()

    def read(self) -> list[Finding]:
        """Look now."""
        self._read_at = self._now()
        found = self._view.heartbeats(self._attempt)
        self._cost_s = self._now() - self._read_at
        ranks = {who: beat for who, beat in found.items() if who.startswith("rank-")}
        self.beats = {who: beat for who, (beat, _) in ranks.items()}
        self._looks.append({beat.rank: beat for beat in (Beat.from_dict(*pair) for pair in ranks.values())})
        return self._news(findings(tuple(self._looks)))

    def history(self) -> list[dict[str, Any]]:
        """The kept looks as rows, for a post-mortem."""
        return [vars(beat) for look in self._looks for beat in look.values()]

    def _news(self, found: tuple[Finding, ...]) -> list[Finding]:
        slow = [finding.rank for finding in found if finding.kind == "slow" and finding.rank is not None]
        self._slow = [*self._slow, *slow][-SLOW_TWICE:] if slow else []
        sure = len(self._slow) == SLOW_TWICE and len(set(self._slow)) == 1
        fresh = []
        for finding in found:
            key = (finding.kind, finding.rank, finding.certain)
            if key not in self._told and (finding.kind != "slow" or sure):
                self._told.add(key)
                fresh.append(finding)
        return fresh
