"""The lifecycle of a run, as one enum and one table.

What the log says is written by the attempt that holds the claim. `interrupted` is the one state that nobody can
write: it is what readers see when an attempt is gone without having said how it ended.
"""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """Where a run stands."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def ended(self) -> bool:
        """Whether nothing runs any more (a later command may still go on from here)."""
        return self in _ENDED

    def may_become(self, following: RunState) -> bool:
        """Whether the table allows this step."""
        return following in _NEXT[self]


_ENDED = frozenset({RunState.DONE, RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED})
_FATES = frozenset({RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED})
_NEXT: dict[RunState, frozenset[RunState]] = {
    RunState.WAITING: _FATES | {RunState.STARTING},
    RunState.STARTING: _FATES | {RunState.RUNNING, RunState.DONE},
    RunState.RUNNING: _FATES | {RunState.DONE, RunState.STARTING},
    RunState.STOPPED: frozenset({RunState.STARTING}),
    RunState.FAILED: frozenset({RunState.STARTING}),
    RunState.INTERRUPTED: frozenset({RunState.STARTING, RunState.FAILED}),
    RunState.DONE: frozenset(),
}
