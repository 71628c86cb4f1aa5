"""Which of several findings is the first cause. The rest of the doctor only collects; this decides.

1. What a program says of itself beats what was inferred: findings are taken in bands of confidence.
2. In a band, time decides where clocks tell: whatever came clearly first is the cause.
3. Where they do not, the kinds' order decides (kinds.py): what stands further up explains what stands further down.
4. Two causes of one band that do not explain each other make each other doubtful: then nothing is said with high
   confidence, and between mere possibilities nothing is said at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from warpbeam.doctor.kinds import Kind
from warpbeam.doctor.rule import Finding

HIGH = 0.9
STRONG = 0.75
NAMED = 0.5
"""Below it nothing is named."""
CLEARLY_S = 2.0
"""Clocks of nodes differ, and a crash takes a while to print."""
_DEPTH = {kind: depth for depth, kind in enumerate(Kind)}


@dataclass(frozen=True)
class Ordered:
    """The first cause, None when it cannot be told; and what else was found, most likely first."""

    first: Finding | None
    others: tuple[Finding, ...]


def order(findings: Iterable[Finding]) -> Ordered:
    """Pick the first cause."""
    ranked = sorted(_one_a_kind(findings), key=_plain_order)
    if not ranked:
        return Ordered(None, ())
    first = _by_time(ranked)
    others = tuple(finding for finding in ranked if finding is not first)
    first = _doubted(first, others)
    if first.confidence < NAMED:
        return Ordered(None, (first, *others))
    return Ordered(first, others)


def band(confidence: float) -> int:
    """0: the program says it; 1: few other mechanisms would; 2: a possibility."""
    return 0 if confidence >= HIGH else 1 if confidence >= STRONG else 2


def _plain_order(finding: Finding) -> tuple[int, int, float]:
    return band(finding.confidence), _DEPTH[finding.kind], -finding.confidence


def _by_time(ranked: Sequence[Finding]) -> Finding:
    """The first in plain order, unless another strong one was clearly there before it."""
    first = ranked[0]
    for other in ranked[1:]:
        if band(other.confidence) <= max(band(first.confidence), 1) and _before(other, first):
            first = other
    return first


def _before(one: Finding, other: Finding) -> bool:
    return one.at_s is not None and other.at_s is not None and one.at_s < other.at_s - CLEARLY_S


def _one_a_kind(findings: Iterable[Finding]) -> list[Finding]:
    """Of several findings of one kind the surest, a little surer for the others."""
    best: dict[Kind, Finding] = {}
    for finding in sorted(findings, key=lambda finding: -finding.confidence):
        known = best.get(finding.kind)
        if known is None:
            best[finding.kind] = finding
        elif known.owner == finding.owner:
            best[finding.kind] = replace(known, confidence=min(0.97, known.confidence + 0.02))
    return list(best.values())


def _doubted(first: Finding, others: Sequence[Finding]) -> Finding:
    rivals = [other for other in others if band(other.confidence) <= band(first.confidence)]
    if not rivals or any(_before(first, rival) for rival in rivals):
        return first
    return replace(first, confidence=min(first.confidence, HIGH - 0.05) - 0.02 * len(rivals))
