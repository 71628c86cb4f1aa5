"""The ranks' devices: those with one of their own all at once, as in a job; those that share cores in turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from warpbeam.preflight.judge_ranks import suspected
from warpbeam.preflight.measured import Rank, Speed

if TYPE_CHECKING:
    from warpbeam.preflight.conduct import Conductor

AGAIN = 2
WITNESSES = 1
"""Ranks without suspicion that are measured beside suspected ones."""


def run(conductor: Conductor) -> None:
    """Measure each rank; whoever stands out again, since a neighbour's work may have been the reason."""
    measured = conductor.measured
    cores = {rank: int(fact["cores"]) for rank, fact in measured.machine.items()}
    _measure(conductor, measured.ranks, cores)
    for _ in range(AGAIN):
        again = suspected(measured.speeds)
        if not again:
            return
        well = [rank for rank in measured.ranks if rank.rank not in again][:WITNESSES]
        _measure(conductor, [rank for rank in measured.ranks if rank.rank in again] + well, cores)


def turns(ranks: Sequence[Rank], cores: dict[int, int]) -> list[list[Rank]]:
    """Who burns together: on each machine as many CPU ranks as it has cores. Pure."""
    alone = [rank for rank in ranks if not rank.on_cpu]
    waiting = [rank for rank in ranks if rank.on_cpu]
    found = [alone] if alone else []
    while waiting:
        now: list[Rank] = []
        used: dict[str, int] = {}
        for rank in waiting:
            if used.get(rank.machine, 0) < max(1, cores.get(rank.rank, 1)):
                used[rank.machine] = used.get(rank.machine, 0) + 1
                now.append(rank)
        waiting = [rank for rank in waiting if rank not in now]
        found.append(now)
    return found


def better(one: Speed | None, other: Speed) -> Speed:
    """The faster of two measurements of a rank; a wrong product is never forgotten."""
    if one is None:
        return other
    return Speed(
        flops=max(one.flops, other.flops),
        right=one.right and other.right,
        memory_bandwidth=max(one.memory_bandwidth, other.memory_bandwidth),
        to_device=_larger(one.to_device, other.to_device),
        from_device=_larger(one.from_device, other.from_device),
        cpu_share=_larger(one.cpu_share, other.cpu_share),
        cpu_limit=other.cpu_limit,
    )


def _measure(conductor: Conductor, ranks: Sequence[Rank], cores: dict[int, int]) -> None:
    measured, done = conductor.measured, 0
    for turn in turns(ranks, cores):
        conductor.progress("devices", done, len(ranks))
        order = {"probe": "burn", "seconds": conductor.ask.burn_s}
        answers, errors = conductor.tell("devices", {rank.rank: order for rank in turn}, conductor.ask.answer_s)
        conductor.note_errors("devices", errors)
        for rank, value in answers.items():
            measured.speeds[rank] = better(measured.speeds.get(rank), Speed(**value))
        done += len(turn)


def _larger(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)
