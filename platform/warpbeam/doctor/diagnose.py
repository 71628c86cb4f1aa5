"""Facts in, one answer out: what `warpbeam doctor` does once it has read everything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from warpbeam.doctor import place
from warpbeam.doctor.echoes import ECHOES, ENDED, heard
from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.order import order
from warpbeam.doctor.rule import Finding
from warpbeam.doctor.rules import RULES
from warpbeam.doctor.scan import Scanner
from warpbeam.doctor.signal import HINT, Signal, says


@dataclass(frozen=True)
class Answer:
    """The doctor's word.

    Args:
        first: the first cause; None: unknown, or healthy when `trouble` is false.
        others: what else was found.
        not_it: what is loud and no cause, in words.
        trouble: whether anything at all went wrong.
        seen: the first lines that say so.
    """

    first: Finding | None
    others: tuple[Finding, ...]
    not_it: tuple[str, ...]
    trouble: bool
    seen: tuple[Fact, ...] = ()


HEALTHY = Answer(None, (), (), trouble=False)

TROUBLE = says(
    r"traceback \(most recent call last\)",
    r"\b\w*(error|exception): ",
    r"\b(fatal|panic|core dumped|aborted|killed|timed out|exited with|crashloopbackoff|nccl warn)\b",
    at=HINT,
)
"""Something went wrong, whatever it was: what tells "unknown" from "healthy"."""


def signals() -> tuple[Signal, ...]:
    """All that is looked for, of every rule."""
    ours = (signal for rule in RULES for signal in rule.patterns)
    return tuple(dict.fromkeys((*ours, *ECHOES.values(), TROUBLE)))


def diagnose(facts: Facts) -> Answer:
    """Apply every rule and order what they find."""
    found = [finding for rule in RULES if (finding := rule.find(facts))]
    ordered = order(found)
    loud = (TROUBLE, *(signal for signal in ECHOES.values() if signal is not ENDED))
    trouble = ordered.first is not None or facts.has(*loud)
    return Answer(ordered.first, ordered.others, tuple(heard(facts)), trouble, tuple(facts.of(*loud)))


def diagnose_texts(evidence: Iterable[tuple[str, str]]) -> Answer:
    """The answer to (where, text) pairs that are already in memory."""
    scanner = Scanner(signals())
    for where, text in evidence:
        scanner.read(place.source(where, told=True), [text.encode()])
    return diagnose(scanner.facts)
