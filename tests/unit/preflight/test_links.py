"""Whom dead and slow links are blamed on: every rank, node and pair of a small cluster in turn."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.preflight.made_up import links_of, ranks_on
from warpbeam.preflight import judge_links
from warpbeam.preflight.judge_links import Blame
from warpbeam.preflight.measured import Link, Rank

CLUSTERS = st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda shape: shape[0] * shape[1] >= 4)


def cut(link: Link) -> Link:
    return replace(link, error="timed out", latency_s=None, bandwidth=None)


def slowed(link: Link) -> Link:
    return replace(link, bandwidth=1e8)


def blamed(found: list[Blame]) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    return [(blame.ranks, blame.nodes) for blame in found]


def spoiled(links: list[Link], spoil: object, touches: object) -> list[Link]:
    assert callable(spoil)
    assert callable(touches)
    return [spoil(link) if touches(link) else link for link in links]


@given(CLUSTERS, st.booleans(), st.booleans())
def test_nobody_is_blamed_where_nothing_is_wrong(shape: tuple[int, int], quick: bool, scattered: bool) -> None:
    ranks = ranks_on(*shape)
    links = links_of(ranks, quick=quick)
    if scattered:
        links = [replace(link, bandwidth=1e9 * (1 + (link.one * 7 + link.other) % 3)) for link in links]
    by_rank = {rank.rank: rank for rank in ranks}
    assert judge_links.dead(links, by_rank) == []
    assert judge_links.slow(links, by_rank) == []


@given(CLUSTERS, st.data(), st.booleans())
def test_one_bad_link_is_a_pair(shape: tuple[int, int], data: st.DataObject, dies: bool) -> None:
    ranks = ranks_on(*shape)
    links = links_of(ranks)
    bad = data.draw(st.sampled_from(links))
    by_rank = {rank.rank: rank for rank in ranks}
    spoil = cut if dies else slowed
    kind = [link for link in links if abroad(link, by_rank) == abroad(bad, by_rank)]
    assume(dies or len(kind) >= 3)
    found = (judge_links.dead if dies else judge_links.slow)(spoiled(links, spoil, lambda link: link == bad), by_rank)
    assert [blame.ranks for blame in found] == [(bad.one, bad.other)]
    assert set(found[0].nodes) == {by_rank[bad.one].node, by_rank[bad.other].node}


@given(CLUSTERS, st.data())
def test_a_rank_without_any_link_is_named_alone(shape: tuple[int, int], data: st.DataObject) -> None:
    nodes, per_node = shape
    assume(per_node > 1)
    ranks = ranks_on(nodes, per_node)
    lonely = data.draw(st.integers(0, len(ranks) - 1))
    links = spoiled(links_of(ranks), cut, lambda link: lonely in (link.one, link.other))
    found = judge_links.dead(links, {rank.rank: rank for rank in ranks})
    assert blamed(found) == [((lonely,), (ranks[lonely].node,))]


@given(st.integers(3, 6), st.integers(1, 4), st.data(), st.booleans())
def test_a_node_that_no_other_reaches_is_named(nodes: int, per_node: int, data: st.DataObject, dies: bool) -> None:
    ranks = ranks_on(nodes, per_node)
    by_rank = {rank.rank: rank for rank in ranks}
    away = data.draw(st.sampled_from([rank.node for rank in ranks]))
    assume(dies or nodes > 4)  # of fewer nodes its links are too large a part for the median to be the others'

    def touches(link: Link) -> bool:
        ends = {by_rank[link.one].node, by_rank[link.other].node}
        return away in ends and len(ends) == 2

    spoil, ask = (cut, judge_links.dead) if dies else (slowed, judge_links.slow)
    assert blamed(ask(spoiled(links_of(ranks), spoil, touches), by_rank)) == [((), (away,))]


@given(st.integers(2, 5), st.integers(2, 4), st.data())
def test_a_cut_way_between_two_nodes_is_named_by_both(nodes: int, per_node: int, data: st.DataObject) -> None:
    ranks = ranks_on(nodes, per_node)
    by_rank = {rank.rank: rank for rank in ranks}
    names = sorted({rank.node for rank in ranks})
    ends = data.draw(st.sampled_from(list(combinations(names, 2))))
    links = spoiled(links_of(ranks), cut, lambda link: {by_rank[link.one].node, by_rank[link.other].node} == set(ends))
    assert blamed(judge_links.dead(links, by_rank)) == [((), ends)]


def test_when_nothing_reaches_anything_no_rank_is_singled_out() -> None:
    ranks = ranks_on(3, 1)
    found = judge_links.dead([cut(link) for link in links_of(ranks)], {rank.rank: rank for rank in ranks})
    assert all(len(blame.ranks) == 2 for blame in found)


def abroad(link: Link, ranks: dict[int, Rank]) -> bool:
    return ranks[link.one].node != ranks[link.other].node
