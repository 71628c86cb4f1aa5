"""Whose fault is it that two ranks cannot talk, or only slowly: a rank's, a node's, or that of the way between two?

A link is blamed as a pair unless several links have one end in common. Every step is for a case in which the wrong name
would send somebody to the wrong machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, TypeVar

from warpbeam.preflight.measured import Link, Rank

End = TypeVar("End", int, str)

SLOW_SHARE: Final = 0.33
"""Of the median of its kind (inside a node, between nodes): below it a link is slow."""
FEWEST: Final = 3
"""Links of one kind that a median takes."""
MOST_OF: Final = 0.7
"""Of an end's links that must be bad for the end itself to be blamed."""


@dataclass(frozen=True)
class Blame:
    """Who, and by which links.

    Args:
        ranks: one rank; two: the way between them; none where nodes are meant.
        nodes: one node; two: the way between them; with ranks: theirs.
    """

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    links: tuple[Link, ...]


def dead(links: Sequence[Link], ranks: Mapping[int, Rank]) -> list[Blame]:
    """Whom to blame for links on which nothing arrives."""
    return _blame(links, [link for link in links if link.dead], ranks)


def slow(links: Sequence[Link], ranks: Mapping[int, Rank]) -> list[Blame]:
    """Whom to blame for links that are far slower than others of their kind."""
    alive = [link for link in links if not link.dead]
    return _blame(alive, slow_links(alive, ranks), ranks)


def slow_links(links: Iterable[Link], ranks: Mapping[int, Rank]) -> list[Link]:
    """Links with a fraction of the bandwidth that the others of their kind have."""
    kinds: dict[bool, list[Link]] = {}
    for link in links:
        if link.bandwidth is not None:
            kinds.setdefault(_across(link, ranks), []).append(link)
    found = []
    for kind in kinds.values():
        if len(kind) < FEWEST:
            continue
        usual = median(link.bandwidth or 0.0 for link in kind)
        found += [link for link in kind if (link.bandwidth or 0.0) < SLOW_SHARE * usual]
    return sorted(found, key=lambda link: (link.one, link.other))


def _blame(links: Sequence[Link], bad: Sequence[Link], ranks: Mapping[int, Rank]) -> list[Blame]:
    """Nodes, then ways between nodes, then ranks, then single links: whatever explains the most goes first."""
    across = [link for link in links if _across(link, ranks)]
    left, found = list(bad), []
    for name in _common(across, [link for link in left if link in across], lambda link: _nodes(link, ranks)):
        mine = tuple(link for link in left if link in across and name in _nodes(link, ranks))
        found.append(Blame((), (name,), mine))
        left = [link for link in left if link not in mine]
    for nodes, mine in _between_nodes(across, left, ranks):
        found.append(Blame((), nodes, mine))
        left = [link for link in left if link not in mine]
    explained = [link for blame in found for link in blame.links]
    for number in _common([link for link in links if link not in explained], left, _ends):
        mine = tuple(link for link in left if number in _ends(link))
        found.append(Blame((number,), (ranks[number].node,), mine))
        left = [link for link in left if link not in mine]
    return [*found, *(Blame(_ends(link), _nodes(link, ranks), (link,)) for link in left)]


def _common(links: Sequence[Link], bad: Sequence[Link], ends_of: Callable[[Link], tuple[End, ...]]) -> list[End]:
    """Ends most of whose links are bad, to at least two other ends, while most links without it are well. The worst
    first; its links then count for nobody else."""
    found: list[End] = []
    while (end := _worst(links, bad, ends_of)) is not None:
        found.append(end)
        links = [link for link in links if end not in ends_of(link)]
        bad = [link for link in bad if end not in ends_of(link)]
    return found


def _worst(links: Sequence[Link], bad: Sequence[Link], ends_of: Callable[[Link], tuple[End, ...]]) -> End | None:
    best: tuple[float, End] | None = None
    for end in dict.fromkeys(end for link in bad for end in ends_of(link)):
        wrong = [link for link in bad if end in ends_of(link)]
        share = len(wrong) / sum(end in ends_of(link) for link in links)
        partners = {other for link in wrong for other in ends_of(link)} - {end}
        rest = sum(end not in ends_of(link) for link in links)
        rest_bad = sum(end not in ends_of(link) for link in bad)
        elsewhere = rest == 0 or rest_bad >= MOST_OF * rest  # everybody's are bad: it is no end's own fault
        if len(partners) >= 2 and share >= MOST_OF and not elsewhere and (best is None or share > best[0]):
            best = (share, end)
    return None if best is None else best[1]


def _between_nodes(
    across: Sequence[Link], bad: Sequence[Link], ranks: Mapping[int, Rank]
) -> list[tuple[tuple[str, ...], tuple[Link, ...]]]:
    """Pairs of nodes between which several links were tried, and all are bad."""
    found = []
    for nodes in dict.fromkeys(_nodes(link, ranks) for link in bad if _across(link, ranks)):
        tried = [link for link in across if _nodes(link, ranks) == nodes]
        wrong = tuple(link for link in bad if _nodes(link, ranks) == nodes)
        if len(wrong) > 1 and len(wrong) == len(tried):
            found.append((nodes, wrong))
    return found


def _across(link: Link, ranks: Mapping[int, Rank]) -> bool:
    return ranks[link.one].node != ranks[link.other].node


def _nodes(link: Link, ranks: Mapping[int, Rank]) -> tuple[str, ...]:
    return tuple(sorted({ranks[link.one].node, ranks[link.other].node}))


def _ends(link: Link) -> tuple[int, ...]:
    return (link.one, link.other)
