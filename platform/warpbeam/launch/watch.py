"""What the driver sees of its own attempt: through the record, like everybody else, but always in time.

One read of the store a second until the ranks train, then at the pace at which they write; whatever their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from warpbeam.checkpoint.members import Member
from warpbeam.errors import WarpbeamError
from warpbeam.launch.rank import JOINING
from warpbeam.record import keys
from warpbeam.record.stream import StreamReader
from warpbeam.record.view import LOSS, SPEED, RunView, eta_s, json_lines
from warpbeam.record.writer import FLUSH_S, ROWS_S

READ_S = 1.0
JUDGE_S = FLUSH_S
_KEPT_ROWS = 200


@dataclass(frozen=True)
class Progress:
    """Where an attempt stands, for a person who watches. Unknown is None."""

    step: int = 0
    total_steps: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    eta_s: float | None = None
    ranks_up: int = 0
    world_size: int = 0


@dataclass
class AttemptWatch:
    """Follows one attempt; `look` is called often and seldom reads the store."""

    view: RunView
    attempt: str
    world_size: int
    now: Callable[[], float] = time.monotonic
    total_steps: int | None = None
    ranks: dict[str, Member] = field(default_factory=dict)
    joining: set[str] = field(default_factory=set)
    rows: list[dict[str, Any]] = field(default_factory=list)
    first_step_at: float | None = None
    moved_at: float | None = None

    def __post_init__(self) -> None:
        prefix = keys.streams(self.view.team, self.view.run, self.attempt, "metrics")
        self._reader = StreamReader(self.view.store, prefix)
        self._read_at = float("-inf")
        self._judged_at = float("-inf")
        self._beats = 0

    def look(self) -> Progress:
        """The newest known progress. A store that is away for a moment changes nothing."""
        if self.now() - self._read_at >= (READ_S if self.first_step_at is None else ROWS_S):
            self._read_at = self.now()
            try:
                self.read()
            except (WarpbeamError, OSError):
                return self._progress()  # the record's writers report a store that stays away
        return self._progress()

    def read(self) -> None:
        """Fetch what is new."""
        if len(self.ranks) < self.world_size:
            beats = self.view.heartbeats(self.attempt)
            ranks = {who: beat for who, (beat, _) in beats.items() if who.startswith("rank-")}
            self.joining = {who for who, beat in ranks.items() if beat["phase"] == JOINING}
            self.ranks = {who: Member.from_dict(beat) for who, beat in ranks.items() if who not in self.joining}
        fresh = json_lines(self._reader.read().get("rank-0", b""))
        steps = [row for row in fresh if LOSS in row]
        if steps:
            self.moved_at = self.now()
        if steps and self.first_step_at is None:
            self.first_step_at = float(steps[0]["at"])
        self.rows = (self.rows + steps)[-_KEPT_ROWS:]

    def stalled(self, after_s: float) -> list[dict[str, Any]]:
        """The ranks' last heartbeats once none of them has shown progress for `after_s`; else nothing.

        Rows are progress enough; heartbeats are read only while none come. A rank counts from its first sign on: what
        comes before is the start, which has a deadline of its own.
        """
        quiet_s = 0.0 if self.moved_at is None else self.now() - self.moved_at
        early = self.moved_at is not None and quiet_s < after_s / 2
        if early or self.now() - self._judged_at < JUDGE_S:
            return []
        self._judged_at = self.now()
        found = self.view.heartbeats(self.attempt)
        beats = [beat for who, (beat, _) in found.items() if who.startswith("rank-")]
        total = sum(int(beat.get("beats", 0)) for beat in beats)
        if total != self._beats:
            self._beats, self.moved_at = total, self.now()
            return []
        return beats if quiet_s >= after_s else []

    def _progress(self) -> Progress:
        last = self.rows[-1] if self.rows else {}
        return Progress(
            step=int(last.get("step", 0)),
            total_steps=self.total_steps,
            loss=last.get(LOSS),
            tokens_per_s=last.get(SPEED),
            eta_s=eta_s(self.rows, self.total_steps),
            ranks_up=len(self.ranks),
            world_size=self.world_size,
        )
