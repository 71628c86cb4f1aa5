"""Ranks that stand still or fall behind while an attempt trains: seen, told, asked for their stacks, and ended where
that is certain.

The limit of the job (`train.stall_after_s`, no progress of any rank) always holds; what the monitor finds comes sooner
and names a rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from warpbeam.checkpoint.members import Member
from warpbeam.errors import WarpbeamError
from warpbeam.launch.failure import Cause
from warpbeam.launch.lookout import Lookout
from warpbeam.launch.ray_train import Ending
from warpbeam.launch.watch import AttemptWatch
from warpbeam.record.monitor import Finding
from warpbeam.record.writer import RecordWriter, read_steps
from warpbeam.train.diagnostics import STACK_SIGNAL, stacks_path

POLL_S = 0.1
STALL_GRACE_S = 5.0  # the ranks write their stacks first
RANKS_NAMED = 4


class Notes(Protocol):
    """Whoever watches the driver."""

    def warn(self, text: str) -> None:
        """Something that a person should look at."""


class RankWatch:
    """`tick` is called often while ranks train. `ending` is set, and the ranks are ended, once they stand still.

    Args:
        abort: ends the ranks.
        diagnose: has the doctor look, in the background.
    """

    def __init__(
        self,
        watch: AttemptWatch,
        record: RecordWriter,
        notes: Notes,
        log_dir: Path,
        stall_after_s: float,
        abort: Callable[[], None],
        diagnose: Callable[[str], None],
    ) -> None:
        self.ending: Ending | None = None
        self.lookout = Lookout(watch.view, watch.attempt)
        self._watch = watch
        self._record = record
        self._notes = notes
        self._log_dir = log_dir
        self._stall_after_s = stall_after_s + STALL_GRACE_S
        self._abort = abort
        self._diagnose = diagnose

    def tick(self) -> None:
        """A store that is away for a moment changes nothing: nobody can tell then."""
        if self.ending is not None:
            return
        with suppress(WarpbeamError, OSError):
            for finding in self.lookout.look(self.quiet_s()):
                self._tell(finding)
            if self.ending is None and (beats := self._watch.stalled(self._stall_after_s)):
                self._end_all(beats)

    def quiet_s(self) -> float:
        """How long no sign of progress has come."""
        return 0.0 if self._watch.moved_at is None else time.monotonic() - self._watch.moved_at

    def _tell(self, finding: Finding) -> None:
        about = {"rank": finding.rank, "certain": finding.certain, "what": finding.what}
        self._record.event("monitor", finding=finding.kind, **about)
        self._record.flush_soon()
        what = finding.what.removeprefix("heartbeats: ")
        if finding.kind == "slow":
            self._notes.warn(f"{what}; the run goes at its pace")
            return
        ask_for_stacks(self.lookout.beats, self._log_dir)
        if finding.certain:
            self._end(Ending(Cause.STALLED, what, f"{Cause.STALLED}:{finding.kind}:{finding.rank}"))
        else:
            self._diagnose(what)

    def _end_all(self, beats: list[dict[str, Any]]) -> None:
        quiet_s = self.quiet_s()
        here = read_steps(self._log_dir)  # newer than a heartbeat, where the rank is on this machine
        steps = {beat["role"]: max(int(beat["step"]), here.get(beat["role"], 0)) for beat in beats}
        where = ", ".join(f"{who} at step {step}" for who, step in list(steps.items())[:RANKS_NAMED])
        more = f" and {len(beats) - RANKS_NAMED} more" if len(beats) > RANKS_NAMED else ""
        self._record.event("stalled", seconds=round(quiet_s, 1), ranks=where + more)
        what = f"no rank has made progress for {quiet_s:.0f} s ({where}{more})"
        self._end(Ending(Cause.STALLED, what, Cause.STALLED))

    def _end(self, ending: Ending) -> None:
        """End ranks that stand still; where each of them was is on its disk by then."""
        self.ending = ending
        self._abort()


def ask_for_stacks(beats: Mapping[str, dict[str, Any]], log_dir: Path, wait_s: float = 0.0) -> list[str]:
    """Have ranks of this machine write their stacks without the interpreter's help: one that cannot send heartbeats
    any more may hold its lock. Those that can do it by themselves, here and elsewhere.

    Returns:
        Those that have not done it within `wait_s`; none without it.
    """
    asked = {}
    for who, beat in beats.items():
        member = Member.from_dict(beat)
        if member.is_here and member.is_running():
            path = stacks_path(log_dir, int(who.removeprefix("rank-")))
            with suppress(OSError):
                asked[who] = (path, path.stat().st_size)
                os.kill(member.pid, STACK_SIGNAL)
    deadline = time.monotonic() + wait_s
    while wait_s:
        asked = {who: (path, size) for who, (path, size) in asked.items() if path.stat().st_size == size}
        if not asked or time.monotonic() > deadline:
            return sorted(asked)
        time.sleep(POLL_S)
    return []
