"""Which rank or node computes more slowly than the others, or than was promised; and who gave no answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from warpbeam.preflight.expected import Expected
from warpbeam.preflight.measured import Collective, How, Lost, Measured, Rank, Speed
from warpbeam.preflight.verdict import Level, Row, Suspect, rank_words

SLOW_SHARE: Final = 0.5
"""Of the others' median, or of what was promised: below it an accelerator is slow."""
CROWDED_SHARE: Final = 0.3
"""The same for processor cores, which other processes use at any moment."""
LIMITED_SHARE: Final = 0.75
"""For a rank whose control group allows it less than half of the others' cores: there is no chance in it."""
LOW_SHARE: Final = 0.65
"""Below it a promised figure is worth a look."""
STARVED: Final = 0.7
"""Share of the wall time below which a processor was elsewhere."""


@dataclass(frozen=True)
class Gauge:
    """One figure of a rank's device."""

    check: str
    unit: str
    scale: float
    value: Callable[[Speed], float | None]
    wanted: Callable[[Expected], float | None]

    def text(self, value: float) -> str:
        """With its unit."""
        return f"{value / self.scale:.3g} {self.unit}"


GAUGES: Final = (
    Gauge("matmul", "TFLOP/s", 1e12, lambda speed: speed.flops, lambda promise: promise.flops),
    Gauge(
        "memory bandwidth",
        "GB/s",
        1e9,
        lambda speed: speed.memory_bandwidth,
        lambda promise: promise.memory_bandwidth,
    ),
    Gauge("host to device", "GB/s", 1e9, lambda speed: speed.to_device, lambda promise: promise.host_bandwidth),
    Gauge("device to host", "GB/s", 1e9, lambda speed: speed.from_device, lambda promise: promise.host_bandwidth),
)


def slow_ranks(values: Mapping[int, float], speeds: Mapping[int, Speed]) -> list[int]:
    """Ranks with a fraction of what the others have in the median; one alone has nobody to be held against.

    On cores, slowness without a limit says something only where the others had theirs to themselves.
    """
    limits = {rank: speed.cpu_limit for rank, speed in speeds.items() if speed.cpu_limit is not None}
    found = []
    for rank, value in values.items():
        others = [other for number, other in values.items() if number != rank]
        share = SLOW_SHARE
        if speeds[rank].cpu_share is not None:
            share = CROWDED_SHARE if is_calm([speeds[other] for other in values if other != rank]) else 0.0
        if rank in limits and _is_limited(limits[rank], [limits.get(other) for other in values if other != rank]):
            share = LIMITED_SHARE
        if others and value < share * median(others):
            found.append(rank)
    return sorted(found)


def is_calm(speeds: Sequence[Speed]) -> bool:
    """Whether cores worked for these ranks nearly all of the time, and not for others' processes."""
    shares = [speed.cpu_share for speed in speeds if speed.cpu_share is not None]
    return bool(shares) and median(shares) >= STARVED


def _is_limited(limit: float, others: Sequence[float | None]) -> bool:
    """Whether most others are allowed more than twice as many cores."""
    more = sum(other is None or other > 2 * limit for other in others)
    return 2 * more > len(others)


def suspected(speeds: Mapping[int, Speed]) -> list[int]:
    """Ranks that are slow in the burn or the copy: worth a second measurement before anybody is blamed."""
    burn = slow_ranks({rank: speed.flops for rank, speed in speeds.items()}, speeds)
    copy = slow_ranks({rank: speed.memory_bandwidth for rank, speed in speeds.items()}, speeds)
    return sorted({*burn, *copy})


def speeds(measured: Measured, promise: Expected) -> tuple[list[Row], list[Suspect]]:
    """What the devices do."""
    rows, suspects = [], []
    ranks = measured.by_rank()
    for gauge in GAUGES:
        values = {rank: value for rank, speed in measured.speeds.items() if (value := gauge.value(speed)) is not None}
        if not values:
            continue
        row, blamed = _gauge(gauge, values, measured.speeds, promise)
        rows.append(row)
        if blamed:
            suspects += _by_machine(gauge, blamed, values, measured.speeds, ranks)
    rows += _crowd(list(measured.speeds.values()))
    wrong = sorted(rank for rank, speed in measured.speeds.items() if not speed.right)
    if measured.speeds:
        level = Level.FAIL if wrong else Level.OK
        rows.append(
            Row("matmul result", "wrong" if wrong else "right", "right", level, rank_words(wrong) if wrong else "")
        )
    suspects += [
        Suspect(
            f"rank {rank}",
            f"computes wrong products on node {ranks[rank].node}",
            "infra",
            (rank,),
            (ranks[rank].node,),
            "take the device out of service: its memory or its units are damaged",
        )
        for rank in wrong
    ]
    return rows, _once(suspects)


def _crowd(speeds: Sequence[Speed]) -> list[Row]:
    """A word on machines that others use: their ranks are then not held against each other."""
    shares = [speed.cpu_share for speed in speeds if speed.cpu_share is not None]
    if not shares or is_calm(speeds):
        return []
    text = f"there for {median(shares):.0%} of the time"
    return [
        Row("cores", text, f"{STARVED:.0%}", Level.WARN, "", "others use them: ranks are not held against each other")
    ]


def _gauge(
    gauge: Gauge, values: Mapping[int, float], speeds: Mapping[int, Speed], promise: Expected
) -> tuple[Row, list[int]]:
    """The row, and the ranks to blame."""
    wanted, lowest = gauge.wanted(promise), min(values, key=lambda rank: values[rank])
    blamed = set(slow_ranks(values, speeds))
    level, note = Level.OK, ""
    if wanted is not None:
        blamed |= {rank for rank, value in values.items() if value < SLOW_SHARE * wanted}
        if values[lowest] < LOW_SHARE * wanted:
            level = Level.WARN
        note = promise.source
    else:
        level = Level.OK if len(values) > 1 else Level.INFO
    text = gauge.text(values[lowest])
    if len(values) > 1:
        text = f"{text} ... {gauge.text(max(values.values()))}"
    wanted_text = gauge.text(wanted) if wanted is not None else "as the others" if len(values) > 1 else ""
    where = f"rank {lowest}" if blamed or level is Level.WARN else ""
    return Row(gauge.check, text, wanted_text, Level.FAIL if blamed else level, where, note), sorted(blamed)


def _by_machine(
    gauge: Gauge,
    blamed: Sequence[int],
    values: Mapping[int, float],
    speeds: Mapping[int, Speed],
    ranks: Mapping[int, Rank],
) -> list[Suspect]:
    """A node where all of its ranks are slow and it has several; else each rank by itself."""
    found: list[Suspect] = []
    left = list(blamed)
    usual = median(values.values())
    for node in dict.fromkeys(ranks[rank].node for rank in blamed):
        mine = [rank for rank in values if ranks[rank].node == node]
        if len(mine) > 1 and set(mine) <= set(blamed) and len(mine) < len(values):
            what = f"{gauge.check} of all of its ranks is {gauge.text(max(values[r] for r in mine))} at most"
            do = "look at its power, its temperature, and who else uses it"
            found.append(Suspect(f"node {node}", what, "infra", tuple(mine), (node,), do))
            left = [rank for rank in left if rank not in mine]
    for rank in left:
        what = f"{gauge.check} is {gauge.text(values[rank])}, {values[rank] / usual:.0%} of the median"
        why, do = _why_slow(speeds[rank])
        found.append(Suspect(f"rank {rank}", what + why, "infra", (rank,), (ranks[rank].node,), do))
    return found


def _why_slow(speed: Speed) -> tuple[str, str]:
    """(evidence, advice)"""
    look = "look at the device's temperature, power and clocks"
    if speed.cpu_share is None:
        return "", look
    if speed.cpu_limit is not None and speed.cpu_limit < 1:
        limit = f"; its control group allows {speed.cpu_limit:.2g} of a core"
        return limit, "raise the CPU limit of that rank's container"
    if speed.cpu_share < STARVED:
        return f"; a core was there for {speed.cpu_share:.0%} of the time", "look for what else runs on that node"
    return "", "look at that node's clocks and power"


def lost(missing: Sequence[Lost], ranks: Mapping[int, Rank]) -> list[Suspect]:
    """Ranks without an answer. Those that died explain those that hang waiting for them."""
    died = [one for one in missing if one.how is How.DIED]
    named = died or list(missing)
    return [
        Suspect(
            f"rank {one.rank}",
            f"{one.how} ({one.phase}, after {one.after_s:.0f} s)" + (f": {one.what}" if one.what else ""),
            "infra",
            (one.rank,),
            (node,) if (node := ranks[one.rank].node if one.rank in ranks else one.node) else (),
            _do_lost(one),
        )
        for one in named
    ]


def _do_lost(one: Lost) -> str:
    if one.how is How.NEVER_JOINED:
        return "see whether its machine has room and its container started"
    if one.how is How.DIED:
        return "read its last words; killed without any means that memory ran out, or somebody ended it"
    return "look at the process's stack on that machine (`py-spy dump`)"


def collectives(measured: Measured, promise: Expected) -> tuple[list[Row], list[Suspect]]:
    """The largest size of each operation against what links can do, and results that were wrong."""
    rows: list[Row] = []
    suspects: list[Suspect] = []
    ranks = measured.by_rank()
    per_node = max((len(members) for members in measured.nodes().values()), default=1)
    largest: dict[tuple[str, str], Collective] = {}
    for found in measured.collectives:
        largest[(found.scope, found.op)] = found
    for (scope, _), found in largest.items():
        rows.append(_busbw_row(found, scope, promise.busbw(found.op, per_node, found.ranks), promise, measured))
        if (slowest := _slow_node(found, measured)) is not None:
            what = f"{found.op.words} among its own ranks takes far longer than in the other nodes"
            do = "look at its links (NVLink, PCIe)"
            suspects.append(Suspect(f"node {slowest}", what, "infra", (), (slowest,), do))
    for found in measured.collectives:
        for rank in found.wrong:
            what = f"{found.op.words} of {found.size_bytes} bytes gave it a wrong result"
            do = "take that machine out of service, and run preflight again"
            suspects.append(Suspect(f"rank {rank}", what, "infra", (rank,), (ranks[rank].node,), do))
    return rows, _once(suspects)


def programs(measured: Measured, promise: Expected) -> list[Row]:
    """What nccl-tests' own programs say of the largest size; a wrong result of theirs names nobody."""
    largest = {said.op: said for said in measured.programs}
    rows = []
    for op, said in largest.items():
        wanted = promise.busbw(op, len(measured.ranks), len(measured.ranks))
        wrong = any(one.wrong for one in measured.programs if one.op is op)
        low = wanted is not None and said.busbw < SLOW_SHARE * wanted
        level = Level.FAIL if wrong or low else Level.OK if wanted is not None else Level.INFO
        text = f"{said.busbw / 1e9:.3g} GB/s busbw at {size_words(said.size_bytes)}"
        wanted_text = f"{wanted / 1e9:.3g} GB/s" if wanted is not None else ""
        rows.append(Row(f"nccl-tests {op.words}", text, wanted_text, level, "", "wrong results" if wrong else ""))
    return rows


def _busbw_row(found: Collective, scope: str, wanted: float | None, promise: Expected, measured: Measured) -> Row:
    level, wanted_text = Level.INFO, ""
    if wanted is not None:
        share = found.busbw / wanted
        level = Level.FAIL if share < SLOW_SHARE else Level.WARN if share < LOW_SHARE else Level.OK
        wanted_text = f"{wanted / 1e9:.3g} GB/s"
    if found.wrong:
        level = Level.FAIL
    where = "all ranks" if scope == "all" else "inside nodes"
    text = f"{found.busbw / 1e9:.3g} GB/s busbw at {size_words(found.size_bytes)}"
    return Row(found.op.words, text, wanted_text, level, where, promise.source if wanted is not None else "")


def _slow_node(found: Collective, measured: Measured) -> str | None:
    """The one node of at least three whose own ranks need more than twice the others' time."""
    if found.scope != "inside":
        return None
    ranks = measured.by_rank()
    times: dict[str, float] = {}
    for rank, seconds in found.seconds.items():
        times[ranks[rank].node] = max(seconds, times.get(ranks[rank].node, 0.0))
    if len(times) < 3:
        return None
    worst = max(times, key=lambda node: times[node])
    others = median(seconds for node, seconds in times.items() if node != worst)
    return worst if times[worst] * SLOW_SHARE > others else None


def size_words(count: int) -> str:
    """`8 B`, `64 KiB`, `1 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count //= 1024
    return f"{count} GiB"


def _once(suspects: Sequence[Suspect]) -> list[Suspect]:
    """The first sentence about each; the same rank is slow in many ways at once."""
    found: dict[str, Suspect] = {}
    for suspect in suspects:
        found.setdefault(suspect.where, suspect)
    return list(found.values())
