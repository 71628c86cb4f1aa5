"""Who talks to whom when links are measured one by one: rounds in which every rank has at most one partner.

Few ranks: everybody with everybody. Many: inside a node everybody with everybody, and between nodes the ranks of the
same place in their nodes, since those share a rail of the fabric. The quick mode meets nodes at distances 1, 2, 4 ...
only: every link of a node is used, not every path between two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

Pair = tuple[int, int]
Round = tuple[Pair, ...]

EVERYBODY: Final = 32
"""Up to so many ranks all pairs are measured."""


def rounds(nodes: Mapping[str, Sequence[int]], *, quick: bool = False) -> list[Round]:
    """Pairs of ranks, the lower first; each pair once, each rank at most once in a round.

    Args:
        nodes: the ranks of each node.
    """
    ranks = sorted(rank for members in nodes.values() for rank in members)
    if len(ranks) <= EVERYBODY and not quick:
        return tournament(ranks)
    inside = _side_by_side([tournament(sorted(members)) for members in nodes.values()])
    return [*inside, *_across(nodes, quick=quick)]


def tournament(players: Sequence[int]) -> list[Round]:
    """Everybody meets everybody once: the circle method, `n - 1` rounds for an even number of players."""
    seats: list[int | None] = [*players] if len(players) % 2 == 0 else [*players, None]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        turn = sorted(_ordered(a, b) for a, b in met if a is not None and b is not None)
        found += [tuple(turn)] if turn else []
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def _across(nodes: Mapping[str, Sequence[int]], *, quick: bool) -> list[Round]:
    """Rounds of nodes, each of them a round of the ranks in the same place."""
    members = [sorted(found) for found in nodes.values()]
    places = range(len(members))
    meetings = _doubling(len(members)) if quick else tournament(places)
    found = []
    for meeting in meetings:
        pairs = [_ordered(a, b) for one, other in meeting for a, b in zip(members[one], members[other], strict=False)]
        found.append(tuple(sorted(pairs)))
    return found


def _doubling(count: int) -> list[Round]:
    """Everybody with the next, with the second next, the fourth ...: about 2 log2(n) rounds."""
    found: list[Round] = []
    seen: set[Pair] = set()
    distance = 1
    while distance < count:
        left = [_ordered(place, (place + distance) % count) for place in range(count)]
        left = [pair for pair in dict.fromkeys(left) if pair not in seen]
        seen.update(left)
        while left:
            busy: set[int] = set()
            now = []
            for a, b in left:
                if a not in busy and b not in busy:
                    now.append((a, b))
                    busy |= {a, b}
            left = [pair for pair in left if pair not in now]
            found.append(tuple(now))
        distance *= 2
    return found


def _side_by_side(schedules: Sequence[list[Round]]) -> list[Round]:
    """The nodes' own rounds at the same time."""
    length = max((len(schedule) for schedule in schedules), default=0)
    together = [
        tuple(sorted(pair for schedule in schedules if turn < len(schedule) for pair in schedule[turn]))
        for turn in range(length)
    ]
    return [found for found in together if found]


def _ordered(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)
