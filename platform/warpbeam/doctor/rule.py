"""A rule: one mechanism, the messages that show it, and what to do. And the finding that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from warpbeam.doctor.facts import Fact, Facts, earliest
from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.signal import Signal
from warpbeam.errors import Owner

Retry = Literal["useless", "may help"]
Scope = Literal["rank", "node", "pod", "job"]
SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that the doctor concludes.

    Args:
        where: `rank N`, `node NAME`, `pod NAME` or `job`.
        confidence: from 0 to 1; 0.9 up is high.
        at_s: when it was first seen, seconds since the year began; None where no line has a time.
    """

    rule: str
    kind: Kind
    owner: Owner
    cause: str
    where: str
    do: str
    retry: Retry
    confidence: float
    evidence: tuple[Fact, ...]
    at_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One mechanism.

    Args:
        cause: in words; `{name}` is filled from a signal's named group.
        do: what mends it, for the owner.
        scope: what the finding is about, where the evidence says which one.
        signals: any of them is enough, with its own confidence.
        needs: one of them has to be there too.
        unless: any of them takes the finding away.
        judge: where comparing is needed instead: the facts that show it and the confidence, or nothing.
    """

    name: str
    kind: Kind
    owner: Owner
    cause: str
    do: str
    retry: Retry = "useless"
    scope: Scope = "job"
    signals: tuple[Signal, ...]
    needs: tuple[Signal, ...] = ()
    unless: tuple[Signal, ...] = ()
    judge: Judge | None = None

    @property
    def patterns(self) -> tuple[Signal, ...]:
        """All that the rule looks at."""
        return (*self.signals, *self.needs, *self.unless)

    def find(self, facts: Facts) -> Finding | None:
        """The rule's finding on these facts; None when they do not show it."""
        if (self.needs and not facts.has(*self.needs)) or facts.has(*self.unless):
            return None
        shown, confidence = self.judge(facts) if self.judge else _any(facts, self.signals)
        return self.finding(shown, confidence) if shown else None

    def finding(self, shown: list[Fact], confidence: float) -> Finding:
        """What these facts mean by this rule."""
        words = {name: word for fact in reversed(shown) for name, word in fact.words.items() if word}
        return Finding(
            rule=self.name,
            kind=self.kind,
            owner=self.owner,
            cause=self.cause.format_map(_Words(words)),
            where=place(shown, self.scope),
            do=self.do,
            retry=self.retry,
            confidence=confidence,
            evidence=tuple(shown[:SHOWN]),
            at_s=earliest(shown),
        )


Judge = Callable[[Facts], tuple[list[Fact], float]]
"""Facts that show the mechanism (none: it is not shown) and the confidence."""
NOTHING: tuple[list[Fact], float] = ([], 0.0)


def _any(facts: Facts, signals: Iterable[Signal]) -> tuple[list[Fact], float]:
    found = sorted(facts.of(*signals), key=lambda fact: -fact.signal.confidence)
    strongest = [fact for fact in found if fact.signal.confidence > 0]
    return (found, strongest[0].signal.confidence) if strongest else NOTHING


def place(shown: Iterable[Fact], scope: Scope) -> str:
    """`rank N`, `node NAME` or `pod NAME` where one fact says so, else `job`."""
    for fact in shown:
        if scope == "node" and fact.node:
            return f"node {fact.node}"
        if scope == "pod" and fact.pod:
            return f"pod {fact.pod}"
        if scope in ("rank", "node", "pod") and fact.rank is not None:
            return f"rank {fact.rank}"
    return "job"


class _Words(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "?"
