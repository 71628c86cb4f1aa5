"""Choose: the fastest setup among those that fit, and what came next.

Memory grows with the micro-batch and everything else is enumerated, so of each group of setups that differ in the
micro-batch alone only the border of what fits is looked for by bisection; time is worked out near that border.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from warpbeam.plan.setup import Setup

SAME: Final = 0.02
"""Two predictions this near say nothing about which is faster: the one that needs less memory is chosen."""
LOOK_BACK: Final = 8  # micro-batches downwards from the fastest so far whose time is worked out: it may still fall


@dataclass(frozen=True)
class Candidate:
    """A setup that fits, with what it would take."""

    setup: Setup
    step_s: float
    memory_gib: float


@dataclass(frozen=True)
class Choice:
    """What a search found.

    Attributes:
        ranked: the best of each layout, fastest first.
        considered: setups that were looked at or ruled out.
        nearest: where nothing fits, the setup that needs least memory.
    """

    ranked: Sequence[Candidate]
    considered: int
    nearest: Setup | None

    @property
    def best(self) -> Candidate | None:
        return self.ranked[0] if self.ranked else None


def choose(
    groups: Iterable[Sequence[Setup]],
    *,
    memory: Callable[[Setup], tuple[float, bool]],
    seconds: Callable[[Setup], float],
    look_back: int = LOOK_BACK,
) -> Choice:
    """The fastest setup of each layout among those that fit, ranked.

    Args:
        groups: setups with the micro-batch ascending, equal in everything else (`layouts.families`).
        memory: GiB of a rank, and whether that fits.
        seconds: of an optimizer step.
        look_back: micro-batches whose time is worked out, from the largest that fits downwards; each that is the
            fastest so far begins the count anew, because pipelines like small ones. 1: the largest alone.
    """
    timed: dict[tuple[object, ...], list[Candidate]] = {}
    considered, nearest, least_gib = 0, None, float("inf")
    for group in groups:
        if not group:
            continue
        considered += len(group)
        needed, fits = memory(group[0])
        if not fits:
            if needed < least_gib:
                nearest, least_gib = group[0], needed
            continue
        largest, known = _border(group, memory, (0, needed))
        fastest_s, index, last = float("inf"), largest, largest - look_back
        while index > max(-1, last):
            setup = group[index]
            step_s = seconds(setup)
            if step_s > fastest_s * (1 + SAME):
                break  # a pipeline's bubble shrinks with the micro-batch, products get slower: from here these win
            if step_s < fastest_s and look_back > 1:
                last = index - look_back
            fastest_s = min(fastest_s, step_s)
            found = Candidate(setup, step_s, known.get(index) or memory(setup)[0])
            timed.setdefault(_kind(setup), []).append(found)
            index -= 1
    return Choice(_answers(timed), considered, None if timed else nearest)


def _border(
    group: Sequence[Setup], memory: Callable[[Setup], tuple[float, bool]], first: tuple[int, float]
) -> tuple[int, dict[int, float]]:
    """The last index that fits, given that the first one does; and the memory of those that were asked for."""
    low, high = 0, len(group) - 1
    known = {first[0]: first[1]}
    while low < high:
        middle = (low + high + 1) // 2
        needed, fits = memory(group[middle])
        known[middle] = needed
        if fits:
            low = middle
        else:
            high = middle - 1
    return low, known


def ranked(found: Iterable[Candidate]) -> list[Candidate]:
    """Fastest first; within `SAME` of the fastest, what needs least memory leads. Offloaded states lead only where
    nothing else is left: they take the host's memory and its link from everybody else, and are predicted worst.
    """
    ordered = sorted(found, key=lambda candidate: candidate.step_s)
    if not ordered:
        return []
    first = [candidate for candidate in ordered if candidate.setup.layout.offload == "none"] or ordered
    close = [candidate for candidate in first if candidate.step_s <= first[0].step_s * (1 + SAME)]
    leader = min(close, key=lambda candidate: candidate.memory_gib)
    return [leader, *(candidate for candidate in ordered if candidate is not leader)]


def _answers(timed: Mapping[tuple[object, ...], Sequence[Candidate]]) -> tuple[Candidate, ...]:
    """The leader of all, then the other kinds' own. All candidates compete for the first place: kinds' leaders alone
    would be chosen within `SAME` twice.
    """
    if not timed:
        return ()
    leader = ranked(candidate for of_kind in timed.values() for candidate in of_kind)[0]
    others = [ranked(of_kind)[0] for kind, of_kind in timed.items() if kind != _kind(leader.setup)]
    return (leader, *sorted(others, key=lambda candidate: candidate.step_s))


def _kind(setup: Setup) -> tuple[object, ...]:
    """What makes two setups different answers: the micro-batch does not."""
    layout = setup.layout
    split = layout.tp, layout.pp, layout.cp, layout.ep
    return layout.sharding, *split, layout.offload, setup.recipe.checkpointing
