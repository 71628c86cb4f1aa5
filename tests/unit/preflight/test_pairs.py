from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from warpbeam.preflight.pairs import EVERYBODY, rounds, tournament

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def nodes_of(sizes: list[int]) -> dict[str, list[int]]:
    found, first = {}, 0
    for number, size in enumerate(sizes):
        found[f"node-{number}"] = list(range(first, first + size))
        first += size
    return found


@given(st.integers(0, 40))
def test_everybody_meets_everybody_once_in_as_few_rounds_as_there_can_be(count: int) -> None:
    plan = tournament(range(count))
    met = Counter(pair for turn in plan for pair in turn)
    assert met == Counter(combinations(range(count), 2))
    assert len(plan) == (0 if count < 2 else count - 1 + count % 2)


@given(SIZES, st.booleans())
def test_nobody_is_asked_twice_at_a_time_and_no_pair_is_measured_twice(sizes: list[int], quick: bool) -> None:
    plan = rounds(nodes_of(sizes), quick=quick)
    for turn in plan:
        busy = [rank for pair in turn for rank in pair]
        assert len(busy) == len(set(busy))
        assert turn
        assert all(one < other for one, other in turn)
    met = Counter(pair for turn in plan for pair in turn)
    assert set(met.values()) <= {1}


@given(SIZES, st.booleans())
def test_every_rank_of_a_node_is_met_inside_it_and_every_node_is_met(sizes: list[int], quick: bool) -> None:
    nodes = nodes_of(sizes)
    node_of = {rank: node for node, members in nodes.items() for rank in members}
    met = {pair for turn in rounds(nodes, quick=quick) for pair in turn}
    for members in nodes.values():
        assert set(combinations(members, 2)) <= met
    if len(nodes) > 1:
        abroad = {node_of[rank] for pair in met for rank in pair if node_of[pair[0]] != node_of[pair[1]]}
        assert abroad == set(nodes)


def test_many_nodes_are_met_in_few_rounds_when_it_must_be_quick() -> None:
    nodes = nodes_of([8] * 64)
    whole, quick = rounds(nodes), rounds(nodes, quick=True)
    assert (len(whole), len(quick)) == (7 + 63, 7 + 11)
    assert sum(map(len, rounds(nodes_of([EVERYBODY])))) == EVERYBODY * (EVERYBODY - 1) // 2


def test_ranks_of_one_place_in_their_nodes_meet_since_they_share_a_rail() -> None:
    met = {pair for turn in rounds(nodes_of([16, 16, 16])) for pair in turn}
    abroad = {(one, other) for one, other in met if one // 16 != other // 16}
    assert abroad == {(rank + 16 * a, rank + 16 * b) for rank in range(16) for a, b in ((0, 1), (0, 2), (1, 2))}
