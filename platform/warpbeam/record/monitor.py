"""What the heartbeats of an attempt say about it: a rank that is gone, one that stands still, one that is slow.

A pure function of the last looks. A false alarm costs a restart, so the loudest word (`certain`) needs two looks that
agree: a rank without a sign of life while the others have one and wait; or ranks whose loop is at the same line, with
no processor time spent, longer than their phase ever takes. Where that is not known yet (a first step compiles), or
the phase waits for storage, which has its own patience, nothing is certain.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

LATE_S = 30.0
TIMES_USUAL = 3.0
FRESH_S = 15.0
"""A heartbeat comes every five seconds; one this old has missed two."""
IDLE_SHARE = 0.05
"""Processor time, of the time between two heartbeats, below which a process does nothing: helpers take 1-2%."""
SLOW_TIMES = 1.5
SLOW_SHARE = 0.2
SLOW_STEPS = 5
"""A slow rank takes so much longer than its peers for what it does alone, and that is so much of a step, over at least
so many steps."""
OF_STORAGE = ("data", "checkpoint", "waiting")
ALONE = ("data", "forward")
"""What a rank does before it meets the others in a step."""
_ORDER = {phase: place for place, phase in enumerate(("forward", "backward", "optimizer", "sync"))} | {
    phase: place for place, phase in enumerate(("callbacks", "evaluate", "checkpoint", "data"))
}

FindingKind = Literal["absent", "left", "lagging", "stalled", "slow"]


@dataclass(frozen=True)
class Beat:
    """One rank's newest heartbeat.

    Args:
        age_s: since it was written, by the store's clock.
        at: when it was written, by the rank's clock: two looks may find the same one.
        in_phase_s: how long it had been in its phase then; `usual_s`: the most it usually is, None while unknown.
        left: it is not in the loop over batches any more.
        stack, cpu_s: where its loop was, and the processor time spent; None while it was not late.
    """

    rank: int
    age_s: float
    at: float
    step: int
    seq: int
    phase: str
    in_phase_s: float
    usual_s: float | None = None
    stack: int | None = None
    cpu_s: float | None = None
    left: bool = False
    spent: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, beat: Mapping[str, Any], age_s: float) -> Beat:
        """From the record; a rank's very first sign has no phase yet."""
        return cls(
            rank=int(str(beat["role"]).removeprefix("rank-")),
            age_s=age_s,
            at=float(beat["at"]),
            step=int(beat["step"]),
            seq=int(beat.get("seq", 0)),
            phase=str(beat["phase"]),
            in_phase_s=float(beat.get("in_phase_s", 0.0)),
            usual_s=beat.get("usual_s"),
            stack=beat.get("stack"),
            cpu_s=beat.get("cpu_s"),
            left=bool(beat.get("left", False)),
            spent=beat.get("spent", {}),
        )

    @property
    def is_fresh(self) -> bool:
        return self.age_s < FRESH_S

    @property
    def of_storage(self) -> bool:
        """Whether its phase waits for a store, which may be away for minutes."""
        return self.phase.startswith(OF_STORAGE)

    @property
    def is_late(self) -> bool:
        """Whether it is in its phase longer than that ever takes. Never, where nobody knows how long that is."""
        return self.usual_s is not None and self.in_phase_s + self.age_s > max(LATE_S, TIMES_USUAL * self.usual_s)

    @property
    def position(self) -> tuple[int, int]:
        """Orders ranks by how far they are."""
        return self.seq, _ORDER.get(self.phase, 0)


@dataclass(frozen=True)
class Finding:
    """What is wrong.

    Args:
        rank: None where it is all of them.
        certain: sure enough to end the attempt for it.
        what: in words; the doctor's rules read them too.
    """

    kind: FindingKind
    rank: int | None
    certain: bool
    what: str


Look = Mapping[int, Beat]
"""The newest heartbeats, by rank, at one moment."""


def findings(looks: Sequence[Look]) -> tuple[Finding, ...]:
    """What the newest look shows, by those before it (oldest first)."""
    if not looks or not looks[-1]:
        return ()
    before, now = looks[-2] if len(looks) > 1 else {}, looks[-1]
    hang = _absent(before, now) or _left(before, now) or _lagging(before, now) or _stalled(before, now)
    return hang or _slow(looks)


def _absent(before: Look, now: Look) -> tuple[Finding, ...]:
    gone = [beat for beat in now.values() if beat.age_s > LATE_S]
    there = [beat for beat in now.values() if beat.is_fresh]
    if not gone or len(there) < len(gone) or not all(beat.is_late for beat in there):
        return ()
    told = []
    for beat in gone:
        again = before.get(beat.rank)
        certain = again is not None and again.at == beat.at and not any(peer.of_storage for peer in there)
        what = f"rank {beat.rank} has given no sign for {beat.age_s:.0f} s, the others wait in {_phases(there)}"
        told.append(Finding("absent", beat.rank, certain, f"heartbeats: {what}"))
    return tuple(told)


def _left(before: Look, now: Look) -> tuple[Finding, ...]:
    """Some ranks have ended their loop, and the others wait for their part."""
    gone = [beat for beat in now.values() if beat.left]
    there = [beat for beat in now.values() if not beat.left]
    if not gone or not there or not all(beat.is_late and beat.is_fresh for beat in there):
        return ()
    first = min(gone, key=lambda beat: (beat.step, beat.rank))
    certain = all(_is_still(before.get(beat.rank), beat) for beat in there) and not any(b.of_storage for b in there)
    what = f"rank {first.rank} has left the loop after step {first.step}, the others wait in {_phases(there)}"
    return (Finding("left", first.rank, certain, f"heartbeats: {what}"),)


def _lagging(before: Look, now: Look) -> tuple[Finding, ...]:
    """One rank is not as far as all others, and they wait."""
    if len(now) < 2 or not all(beat.is_fresh for beat in now.values()):
        return ()
    last, *others = sorted(now.values(), key=lambda beat: beat.position)
    if others[0].position <= last.position or not all(beat.is_late for beat in others):
        return ()
    seconds = min(beat.in_phase_s + beat.age_s for beat in others)
    what = f"rank {last.rank} stood at step {last.step} in {last.phase}, the others wait in {_phases(others)}"
    stands = _is_still(before.get(last.rank), last) and not last.of_storage
    return (Finding("lagging", last.rank, stands, f"heartbeats: {what} for {seconds:.0f} s"),)


def _stalled(before: Look, now: Look) -> tuple[Finding, ...]:
    if not all(beat.is_fresh and beat.is_late for beat in now.values()):
        return ()
    still = all(_is_still(before.get(rank), beat) for rank, beat in now.items())
    certain = still and not any(beat.of_storage for beat in now.values())
    seconds = min(beat.in_phase_s + beat.age_s for beat in now.values())
    usual_s = max(beat.usual_s or 0.0 for beat in now.values())
    what = f"all ranks stand in {_phases(now.values())} for {seconds:.0f} s, which takes {usual_s:.1f} s at most"
    return (Finding("stalled", None, certain, f"heartbeats: {what}"),)


def _is_still(before: Beat | None, now: Beat) -> bool:
    """At the same line in two heartbeats, with no work done between them."""
    if before is None or None in (before.stack, now.stack, before.cpu_s, now.cpu_s) or now.at <= before.at:
        return False
    assert now.cpu_s is not None
    assert before.cpu_s is not None
    worked = now.cpu_s - before.cpu_s > IDLE_SHARE * (now.at - before.at)
    return (before.stack, before.position) == (now.stack, now.position) and not worked


def _slow(looks: Sequence[Look]) -> tuple[Finding, ...]:
    """One rank takes longer than its peers for what each does alone, since the newest look that lies enough steps back:
    what was before may have been another pace."""
    alone: dict[int, tuple[float, float]] = {}
    for before in reversed(looks[:-1]):
        alone = {rank: times for rank, beat in looks[-1].items() if (times := _alone_s(before.get(rank), beat))}
        if len(alone) == len(looks[-1]):
            break
    if len(alone) < 2 or len(alone) < len(looks[-1]):
        return ()
    rank, (seconds, step_s) = max(alone.items(), key=lambda item: item[1][0])
    usual_s = statistics.median(times[0] for other, times in alone.items() if other != rank)
    if seconds < SLOW_TIMES * usual_s or seconds - usual_s < SLOW_SHARE * step_s:
        return ()
    what = f"rank {rank} is slower than its peers: {seconds:.2f} s a step before it meets them, they take {usual_s:.2f}"
    return (Finding("slow", rank, False, f"heartbeats: {what}"),)


def _alone_s(before: Beat | None, now: Beat) -> tuple[float, float] | None:
    """Seconds a step in phases of its own, and of a whole step."""
    if before is None or now.step - before.step < SLOW_STEPS:
        return None
    steps = now.step - before.step
    spent = {phase: seconds - before.spent.get(phase, 0.0) for phase, seconds in now.spent.items()}
    return sum(spent.get(phase, 0.0) for phase in ALONE) / steps, (now.at - before.at) / steps


def _phases(beats: Any) -> str:
    return " or ".join(sorted({beat.phase for beat in beats}))
