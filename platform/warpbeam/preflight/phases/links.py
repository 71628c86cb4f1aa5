"""The links one by one, in rounds; what is dead or slow is tried once more, alone, before anybody is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warpbeam.preflight.judge_links import slow_links
from warpbeam.preflight.measured import Link, Skipped
from warpbeam.preflight.pairs import Pair, Round, rounds

if TYPE_CHECKING:
    from warpbeam.preflight.conduct import Conductor

SHARE = 0.4
"""Of the budget that is left: collectives, which follow where no link is dead, need the rest."""
AGAIN_AT_MOST = 16


def run(conductor: Conductor) -> None:
    """Measure the pairs that the schedule names, as far as time reaches."""
    measured = conductor.measured
    if len(measured.ranks) < 2:
        measured.skipped.append(Skipped("links", "one rank alone"))
        return
    plan = rounds(measured.nodes(), quick=conductor.ask.quick)
    total, began, left_s = sum(len(one) for one in plan), conductor.now(), conductor.left_s
    found: dict[Pair, Link] = {}
    for turn in plan:
        dead = any(
            link.dead for link in found.values()
        )  # nothing follows then: all of the time is for whose fault it is
        if found and conductor.now() - began > left_s * (1.0 if dead else SHARE):
            text = (
                f"{len(found)} of {total} pairs: the others had no time in a budget of {conductor.ask.budget_s:.0f} s"
            )
            measured.skipped.append(Skipped("links", text))
            break
        found |= _round(conductor, turn)
        conductor.progress("links", len(found), total)
    _again(conductor, found)
    measured.links = [found[pair] for pair in sorted(found)]


def _again(conductor: Conductor, found: dict[Pair, Link]) -> None:
    """One at a time: of two measurements the better one counts."""
    odd = [link for link in found.values() if link.dead]
    if not conductor.measured.crowded():
        odd += slow_links([link for link in found.values() if not link.dead], conductor.measured.by_rank())
    if len(odd) > AGAIN_AT_MOST:  # a node, or all of it: that is no accident
        return
    for first in odd:
        pair = (first.one, first.other)
        second = _round(conductor, (pair,))[pair]
        if first.dead or (not second.dead and (second.bandwidth or 0.0) > (first.bandwidth or 0.0)):
            found[pair] = second


def _round(conductor: Conductor, turn: Round) -> dict[Pair, Link]:
    """All pairs of a round at the same time."""
    orders: dict[int, dict[str, Any]] = {}
    for pair in turn:
        order = {"probe": "link", **group(conductor, pair)}
        orders |= dict.fromkeys(pair, order)
    answers, errors = conductor.tell("links", orders, 2 * conductor.ask.link_s)
    return {pair: _link(pair, answers, errors) for pair in turn}


def group(conductor: Conductor, ranks: tuple[int, ...], timeout_s: float | None = None) -> dict[str, Any]:
    """The part of an order that says whom to meet, and where."""
    known = conductor.measured.by_rank()
    return {
        "ranks": list(ranks),
        "addresses": [(known[rank].address, conductor.ports[rank]) for rank in ranks],
        "tag": f"{conductor.next_tag()}-{ranks[0]}",
        "timeout_s": timeout_s or conductor.ask.link_s,
    }


def _link(pair: Pair, answers: dict[int, dict[str, Any]], errors: dict[int, str]) -> Link:
    one, other = pair
    if error := errors.get(one) or errors.get(other):
        return Link(one, other, error=error)
    value = answers[one]
    if not value["right"]:
        return Link(one, other, error="what arrives is not what was sent")
    ways = [min(answers[rank]["ways"]) for rank in pair]
    return Link(one, other, latency_s=value["latency_s"], bandwidth=min(ways))
