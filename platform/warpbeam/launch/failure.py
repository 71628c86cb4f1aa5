"""Decide what follows a failed attempt: try again or stop. A pure function of what has happened so far.

A process or machine that is dead or stands still is tried again, because that is what the checkpoint is for. A bug is
not: it would burn the same accelerators to the same end. A bug can look like a death (a kernel that crashes, the
out-of-memory killer) or a stall (a collective that one rank leaves out), so the same at one step twice counts as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from warpbeam.errors import Owner

RETRIES_WITHOUT_PROGRESS = 3
BACKOFF_S = (1.0, 5.0, 15.0)


class Cause(StrEnum):
    """Why an attempt ended early."""

    BAD_INPUT = "bad_input"
    USER_CODE = "user_code_failed"
    WORKER_DIED = "worker_died"
    NODE_LOST = "node_lost"
    STALLED = "stalled"
    INFRA = "infra"
    DISK_FULL = "disk_full"
    NO_RESOURCES = "no_resources"
    FENCED = "fenced"
    PLATFORM = "platform"
    PREFLIGHT = "preflight"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Failure:
    """One failed attempt.

    Args:
        step: the last step that its ranks reported.
        committed_step: the checkpoint that the next attempt would begin with.
        error: what tells two failures apart, without addresses or times in it.
    """

    cause: Cause
    step: int
    committed_step: int
    error: str


@dataclass(frozen=True)
class Retry:
    """Start another attempt after a pause."""

    after_s: float


@dataclass(frozen=True)
class Stop:
    """Give up: the reason code and who can mend it."""

    reason: str
    owner: Owner


_STOPS: dict[Cause, Owner] = {
    Cause.BAD_INPUT: "ml",
    Cause.USER_CODE: "ml",
    Cause.NO_RESOURCES: "platform",
    Cause.FENCED: "infra",
    Cause.PLATFORM: "platform",
    Cause.PREFLIGHT: "infra",
    Cause.DISK_FULL: "infra",
    Cause.UNKNOWN: "unknown",
}
_GIVEN_UP: dict[Cause, Owner] = {
    Cause.WORKER_DIED: "ml",
    Cause.STALLED: "ml",
    Cause.NODE_LOST: "infra",
    Cause.INFRA: "infra",
}


def decide(history: Sequence[Failure]) -> Retry | Stop:
    """What to do after the last failure of `history` (oldest first, at least one).

    Failures count against the budget only while no new checkpoint was committed between them: a week-long run may lose
    more machines than a short one.
    """
    last = history[-1]
    if last.cause is Cause.NO_RESOURCES and any(failure.step for failure in history[:-1]):
        return Stop(Cause.NODE_LOST.value, _GIVEN_UP[Cause.NODE_LOST])  # ranks were there: nothing came in their place
    if last.cause in _STOPS:
        return Stop(last.cause.value, _STOPS[last.cause])
    if len(history) > 1 and _same(history[-2], last):
        return Stop("same_failure_twice", _GIVEN_UP[last.cause])
    barren = 0
    for failure in reversed(history):
        if failure.committed_step != last.committed_step:
            break
        barren += 1
    if barren > RETRIES_WITHOUT_PROGRESS:
        return Stop("too_many_failures", _GIVEN_UP[last.cause])
    return Retry(BACKOFF_S[min(barren, len(BACKOFF_S)) - 1])


def _same(one: Failure, other: Failure) -> bool:
    """A node that is lost twice at one step is chance; a process that dies or stands still so is not."""
    alike = (one.cause, one.step, one.error) == (other.cause, other.step, other.error)
    return alike and other.cause in (Cause.WORKER_DIED, Cause.STALLED)
