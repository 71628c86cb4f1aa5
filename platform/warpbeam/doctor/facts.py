"""Typed evidence: which line said what, where and when. What rules reason on, and all that they reason on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from warpbeam.doctor.signal import Reading, Signal

KEPT = 64
"""Facts kept for each signal: the first ones. Of the others that a scan took, the count and the ranks stay."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where lines come from.

    Args:
        where: as a person would say it: "rank 3 log", "dmesg gpu-3", a file's path.
        told: a short excerpt or a note, in which people's words count too.
    """

    where: str
    reading: Reading = Reading.LOG
    told: bool = False
    rank: int | None = None
    node: str | None = None
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One line that one signal recognised.

    Args:
        at_s: seconds since the year began, as the line's own clock says; None where the line has no time.
        words: the signal's named groups.
    """

    signal: Signal
    source: Source
    text: str
    at_s: float | None = None
    rank: int | None = None
    node: str | None = None
    pod: str | None = None
    words: dict[str, str] = field(default_factory=dict)


@dataclass
class Seen:
    """All that is kept of one signal, whatever the number of lines."""

    kept: list[Fact] = field(default_factory=list)
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    first_at_s: float | None = None


class Facts:
    """The facts of one diagnosis."""

    def __init__(self) -> None:
        self._seen: dict[Signal, Seen] = {}
        self.ranks: set[int] = set()
        """Ranks that said anything at all."""
        self.last_lines: dict[Source, str] = {}
        """The last line of each log."""

    def add(self, fact: Fact) -> None:
        """Take one fact in; beyond `KEPT` of a signal only its count and its rank."""
        seen = self._seen.setdefault(fact.signal, Seen())
        seen.count += 1
        if fact.rank is not None:
            seen.ranks.add(fact.rank)
        if fact.at_s is not None and (seen.first_at_s is None or fact.at_s < seen.first_at_s):
            seen.first_at_s = fact.at_s
            if len(seen.kept) == KEPT:
                seen.kept[-1] = fact  # the earliest line is never lost
        if len(seen.kept) < KEPT:
            seen.kept.append(fact)

    def of(self, *signals: Signal) -> list[Fact]:
        """Facts of these signals, in the order of the signals, then of the lines."""
        return [fact for signal in signals if signal in self._seen for fact in self._seen[signal].kept]

    def has(self, *signals: Signal) -> bool:
        """Whether any of them was seen."""
        return any(signal in self._seen for signal in signals)

    def count(self, *signals: Signal) -> int:
        """How many lines they recognised."""
        return sum(self._seen[signal].count for signal in signals if signal in self._seen)

    def ranks_of(self, *signals: Signal) -> set[int]:
        """Ranks on which any of them was seen."""
        return set().union(*(self._seen[signal].ranks for signal in signals if signal in self._seen))

    def __iter__(self) -> Iterator[Signal]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)


def earliest(facts: Iterable[Fact]) -> float | None:
    """Seconds of the first of them that has a time."""
    return min((fact.at_s for fact in facts if fact.at_s is not None), default=None)
