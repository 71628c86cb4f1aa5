"""Collectives at growing sizes, inside the nodes and over all ranks, as far as memory and time reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warpbeam.preflight.busbw import Op, legal_size
from warpbeam.preflight.judge_ranks import size_words
from warpbeam.preflight.measured import Collective, Skipped
from warpbeam.preflight.phases.links import group
from warpbeam.preflight.sizes import LARGEST, MEMORY_SHARE, Room, fitting, predicted_s, repeats

if TYPE_CHECKING:
    from warpbeam.preflight.conduct import Conductor

TIMEOUT_S = 30.0
"""Of one operation."""


@dataclass(frozen=True)
class Scope:
    """Groups that work at the same time: one of all ranks, or one a node."""

    name: str
    groups: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Ranks of the largest group."""
        return max(len(members) for members in self.groups)


def run(conductor: Conductor) -> None:
    """Every scope, unless a link is dead: a collective over it would only wait."""
    measured = conductor.measured
    if len(measured.ranks) < 2:
        measured.skipped.append(Skipped("collectives", "one rank alone"))
        return
    if any(link.dead for link in measured.links):
        measured.skipped.append(Skipped("collectives", "a link is dead: they would wait for it"))
        return
    found = scopes(measured.nodes(), quick=conductor.ask.quick)
    for number, scope in enumerate(found):
        _scope(conductor, scope, conductor.left_s / (len(found) - number))


def scopes(nodes: dict[str, list[int]], *, quick: bool) -> list[Scope]:
    """Inside the nodes, where there are several with several ranks of the same number; then all. Pure."""
    everyone = Scope("all", (tuple(sorted(rank for members in nodes.values() for rank in members)),))
    sizes = {len(members) for members in nodes.values()}
    if quick or len(nodes) == 1 or sizes == {1} or len(sizes) > 1:
        return [everyone]
    return [Scope("inside", tuple(tuple(members) for members in nodes.values())), everyone]


def _scope(conductor: Conductor, scope: Scope, within_s: float) -> None:
    """Join the groups, then each operation with an equal part of the time that is left."""
    until = conductor.now() + within_s
    orders: dict[int, dict[str, Any]] = {}
    for members in scope.groups:
        order = {"probe": "join", **group(conductor, members, TIMEOUT_S)}
        orders |= dict.fromkeys(members, order)
    phase = f"joining {scope.name}"
    _, errors = conductor.tell(phase, orders, TIMEOUT_S, together=True)
    conductor.note_errors(phase, errors)
    if errors:
        return
    ops = list(Op)
    for number, op in enumerate(ops):
        _op(conductor, scope, op, (until - conductor.now()) / (len(ops) - number))
    conductor.tell("leaving", {rank: {"probe": "leave"} for members in scope.groups for rank in members}, TIMEOUT_S)


def _op(conductor: Conductor, scope: Scope, op: Op, within_s: float) -> None:
    """One operation at growing sizes."""
    measured, until = conductor.measured, conductor.now() + within_s
    where = f"{op.words}, {'all ranks' if scope.name == 'all' else 'inside nodes'}"
    sizes = fitting(op, conductor.ask.sizes, scope.size, _rooms(conductor))
    last: Collective | None = None
    for number, wanted in enumerate(sizes):
        size = legal_size(op, wanted, scope.size)
        conductor.progress(where, number, len(sizes))
        expected_s = predicted_s(last.mean_s if last else None, last.size_bytes if last else 0, size)
        count = repeats(expected_s, until - conductor.now())
        if count == 0:
            text = f"no time for {size_words(wanted)} and more: it would take about {expected_s or 0.0:.1f} s each"
            measured.skipped.append(Skipped(where, text))
            return
        last = _one(conductor, scope, op, size, count, TIMEOUT_S + max(0.0, until - conductor.now()))
        if last is None:
            return
        measured.collectives.append(last)
    if len(sizes) < len(conductor.ask.sizes):
        first_out = conductor.ask.sizes[len(sizes)]
        text = f"stops before {size_words(first_out)}: all ranks' buffers would pass {MEMORY_SHARE:.0%} of free memory"
        measured.skipped.append(Skipped(where, text))
    else:
        assert conductor.ask.sizes[-1] == LARGEST


def _one(conductor: Conductor, scope: Scope, op: Op, size: int, count: int, within_s: float) -> Collective | None:
    order = {"probe": "collective", "op": op.value, "size_bytes": size, "repeats": count}
    ranks = [rank for members in scope.groups for rank in members]
    phase = f"{op.words} of {size_words(size)}"
    answers, errors = conductor.tell(phase, dict.fromkeys(ranks, order), within_s, together=True)
    if errors:
        conductor.note_errors(phase, errors)
        return None
    wrong = tuple(rank for rank in ranks if not answers[rank]["right"])
    seconds = {rank: float(answers[rank]["seconds"]) for rank in ranks}
    return Collective(op, scope.name, size, scope.size, seconds, wrong)


def _rooms(conductor: Conductor) -> list[Room]:
    """What each machine's memory, or each rank's own device, has free."""
    measured = conductor.measured
    found: list[Room] = []
    shared: dict[str, tuple[int, int]] = {}
    for rank in measured.ranks:
        fact = measured.machine.get(rank.rank)
        if fact is None:
            continue
        if fact.get("device_free_bytes") is not None:
            found.append(Room(int(fact["device_free_bytes"]), 1))
        else:
            free, ranks = shared.get(rank.machine, (int(fact["free_bytes"]), 0))
            shared[rank.machine] = (min(free, int(fact["free_bytes"])), ranks + 1)
    return [*found, *(Room(free, ranks) for free, ranks in shared.values())] or [Room(0, 1)]
