"""The lifecycle of an attempt of a run, as one enum and one table that the log keeps (`Claim.state`).

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
    # A run whose steps were all done, and only the end was not written, goes from STARTING to DONE.
    RunState.STARTING: _FATES | {RunState.STARTING, RunState.WAITING, RunState.RUNNING, RunState.DONE},
    RunState.RUNNING: _FATES | {RunState.DONE},
    **dict.fromkeys(_ENDED, frozenset()),  # the next attempt makes a claim of its own
}
