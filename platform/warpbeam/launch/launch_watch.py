"""The phases of a launch, each with a deadline: when one passes, it is told which ranks are missing, and the doctor
looks.

Nothing is ended for it: a first step may compile, a large model may load for long. What Kubernetes does before there is
a driver (queue, pull, pods) is told by `warpbeam status` from the cluster itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.errors import WarpbeamError
from warpbeam.launch.rank_watch import ask_for_stacks

if TYPE_CHECKING:
    from warpbeam.launch.rank_watch import Notes
    from warpbeam.launch.watch import AttemptWatch
    from warpbeam.record.writer import RecordWriter

NAMED = 8
ANSWER_S = 2.0


class Stage(StrEnum):
    """What an attempt waits for."""

    WORKERS = "workers"
    GROUP = "group"
    COLLECTIVE = "first collective"
    STEP = "first step"


def stage(*, signs: int, joined: int, world_size: int, gone: bool) -> Stage | None:
    """Where a launch stands. Pure. None: it waits for the data, whose preparation tells its own progress.

    Args:
        signs: ranks whose process has said that it is there.
        joined: those that have made their process group.
        gone: the driver has given the word to train.
    """
    if signs < world_size:
        return Stage.WORKERS
    if joined < world_size:
        return Stage.GROUP
    return Stage.STEP if gone else None


class LaunchWatch:
    """`tick` is called often until the first step. A phase that is late is told once.

    Args:
        why_waiting: Ray's reason why ranks have no place yet, None when it has one for all.
        limits_s: by stage.
        log_dir: where ranks of this machine leave their stacks.
    """

    def __init__(
        self,
        watch: AttemptWatch,
        record: RecordWriter,
        notes: Notes,
        diagnose: Callable[[str], None],
        why_waiting: Callable[[], str | None],
        limits_s: dict[Stage, float],
        log_dir: Path,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._record = record
        self._notes = notes
        self._diagnose = diagnose
        self._why_waiting = why_waiting
        self._limits_s = limits_s
        self._log_dir = log_dir
        self._now = now
        self._stage: Stage | None = None
        self._since = now()
        self._told: set[Stage] = set()

    def tick(self, *, gone: bool) -> None:
        """Look whether a deadline has passed."""
        watch = self._watch
        signs = len(watch.ranks) + len(watch.joining)
        here = stage(signs=signs, joined=len(watch.ranks), world_size=watch.world_size, gone=gone)
        if here is not self._stage:
            self._stage, self._since = here, self._now()
        if here is None or watch.first_step_at is not None:
            return
        after_s = self._now() - self._since
        if here is Stage.STEP and Stage.COLLECTIVE not in self._told and after_s > self._limits_s[Stage.COLLECTIVE]:
            self._told.add(Stage.COLLECTIVE)
            if not_there := self._not_met():
                self._tell(Stage.COLLECTIVE, after_s, not_there)
        elif here not in self._told and after_s > self._limits_s[here]:
            self._told.add(here)
            self._tell(here, after_s, self._about(here))

    def _tell(self, late: Stage, after_s: float, what: str) -> None:
        self._record.event("launch_late", stage=late, after_s=round(after_s, 1), what=f"launch: {what}")
        self._record.flush_soon()
        self._notes.warn(f"after {after_s:.0f} s: {what}")
        self._diagnose(what)

    def _about(self, late: Stage) -> str:
        watch, world_size = self._watch, self._watch.world_size
        if late is Stage.WORKERS:
            there = {*watch.ranks, *watch.joining}
            missing = _names(f"rank-{rank}" for rank in range(world_size) if f"rank-{rank}" not in there)
            why = self._why_waiting()
            return f"{len(there)} of {world_size} workers have started, no sign of {missing}" + (
                f"; {why}" if why else ""
            )
        if late is Stage.GROUP:
            formed = f"all {world_size} workers have started, the process group has not formed"
            silent = [f"{_names([who])} does not answer" for who in self._silent()]
            return ": ".join([formed, *silent[:1]])
        places = [f"{who.replace('-', ' ')} stands in {beat['phase']}" for who, beat in sorted(self._beats().items())]
        return "no first step: " + ", ".join(places[:NAMED])

    def _silent(self) -> list[str]:
        """Ranks of this machine that wait to join and do not even write their stacks when they are asked to."""
        waiting = {who: beat for who, beat in self._beats().items() if who in self._watch.joining}
        return ask_for_stacks(waiting, self._log_dir, wait_s=ANSWER_S)

    def _not_met(self) -> str:
        """Which ranks have not come through their first collective."""
        before = sorted(who for who, beat in self._beats().items() if beat["phase"] == "start")
        return f"the first collective has not ended on {_names(before)}" if before else ""

    def _beats(self) -> dict[str, dict[str, Any]]:
        try:
            beats = self._watch.view.heartbeats(self._watch.attempt)
        except (WarpbeamError, OSError):
            return {}  # the store is away, and the driver waits for it elsewhere
        return {who: beat for who, (beat, _) in beats.items() if who.startswith("rank-")}


def limits(launch_after_s: float, stall_after_s: float) -> dict[Stage, float]:
    """Seconds by stage. A first step compiles and loads: it has as long as any other that stands still."""
    return dict.fromkeys(Stage, launch_after_s) | {Stage.STEP: max(launch_after_s, stall_after_s)}


def _names(ranks: Iterable[str]) -> str:
    names = [who.replace("-", " ") for who in ranks]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
