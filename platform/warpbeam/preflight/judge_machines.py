"""Versions, limits, clocks, names, disks and the store: equal on all ranks, and enough?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from warpbeam.errors import Owner
from warpbeam.preflight.expected import Expected
from warpbeam.preflight.measured import Clock, Measured, Rank
from warpbeam.preflight.verdict import Level, Row, Suspect, rank_words

MATTERS: Final = ("warpbeam", "python", "torch", "cuda", "nccl", "driver", "ray", "deepspeed", "transformers")
"""Of these every rank must have the same; of other packages a difference is worth a look."""
SKEW_WARN_S: Final = 0.5
"""Beyond it the order of events in several ranks' logs cannot be told."""
SKEW_FAIL_S: Final = 300.0
"""Stores refuse signatures that are some minutes old (S3: 15)."""
FILES_FEW: Final = 1024
FILES_WANTED: Final = 4096
DNS_SLOW_S: Final = 2.0
DISK_SLOW: Final = 50e6
STORE_SLOW: Final = 10e6


def versions(facts: Mapping[int, dict[str, Any]], promise: Expected) -> tuple[list[Row], list[Suspect]]:
    """The same on all ranks, and as the pool says of its image."""
    found = {rank: dict(fact["versions"]) for rank, fact in facts.items()}
    if not found:
        return [], []
    rows, suspects = [], []
    differing: list[str] = []
    for name in sorted({name for one in found.values() for name in one}):
        values = {rank: one.get(name, "none") for rank, one in found.items()}
        counted = Counter(values.values())
        if len(counted) == 1:
            continue
        usual = counted.most_common(1)[0][0]
        odd = sorted(rank for rank, value in values.items() if value != usual)
        matters = name in MATTERS
        differing.append(name)
        text = f"{values[odd[0]]}, elsewhere {usual}"
        rows.append(Row(f"version of {name}", text, "equal", Level.FAIL if matters else Level.WARN, rank_words(odd)))
        if matters:
            what = f"{name} is {values[odd[0]]}, on the other ranks {usual}"
            do = "start all ranks from one image, by digest"
            suspects.append(Suspect(rank_words(odd), what, "platform", tuple(odd), (), do))
    here = next(iter(found.values()))
    if not differing:
        named = ", ".join(f"{name} {here[name]}" for name in MATTERS if name in here)
        rows.append(Row("versions", f"equal on all ranks: {named}", "equal"))
    rows += _promised(here, promise)
    return rows, suspects


def _promised(here: Mapping[str, str], promise: Expected) -> list[Row]:
    """What the pool says that its image holds, where it is something else."""
    return [
        Row(f"version of {name}", here.get(name, "none"), wanted, Level.WARN, "", "the pool's `image.versions`")
        for name, wanted in promise.versions.items()
        if here.get(name) != wanted
    ]


def devices(ranks: Sequence[Rank], promise: Expected) -> tuple[list[Row], list[Suspect]]:
    """Accelerators where the pool has some, of one kind."""
    kinds = Counter(rank.device for rank in ranks)
    if not kinds:
        return [], []
    usual = kinds.most_common(1)[0][0]
    text = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common())
    bare = sorted(rank.rank for rank in ranks if rank.on_cpu) if not promise.on_cpu else []
    if bare:
        all_of_them = len(bare) == len(ranks)
        where = "job" if all_of_them else rank_words(bare)
        what = (
            f"no accelerator is seen by {'any rank' if all_of_them else rank_words(bare)}; the pool has {promise.kind}"
        )
        do = "look at the driver and the device plugin: `nvidia-smi` in that container"
        nodes = tuple(sorted({rank.node for rank in ranks if rank.rank in bare}))
        row = Row("devices", text, promise.kind or "", Level.FAIL, rank_words(bare))
        return [row], [Suspect(where, what, "infra", tuple(bare), nodes, do)]
    odd = sorted(rank.rank for rank in ranks if rank.device != usual)
    if odd:
        return [Row("devices", text, "equal", Level.WARN, rank_words(odd))], []
    return [Row("devices", text, promise.kind or "")], []


def limits(measured: Measured, promise: Expected) -> list[Row]:
    """/dev/shm, open files, pinned memory: the least of all ranks. A limit that is None is none."""
    facts = measured.machine
    if not facts:
        return []
    return [
        _shm(measured, promise),
        _files({rank: fact["open_files"] for rank, fact in facts.items()}),
        _memlock({rank: fact["memlock_bytes"] for rank, fact in facts.items()}, facts, promise),
    ]


def _shm(measured: Measured, promise: Expected) -> Row:
    facts, ranks = measured.machine, measured.by_rank()
    free = {rank: int(fact["shm_free_bytes"]) for rank, fact in facts.items()}
    lowest = min(free, key=lambda rank: free[rank])
    node = ranks[lowest].node
    broken = next((rank for rank, fact in facts.items() if fact["shm_error"]), None)
    text = f"{free[lowest] / 1e6:,.0f} MB free"
    if broken is not None:
        return Row("/dev/shm", facts[broken]["shm_error"], "", Level.FAIL, f"rank {broken}")
    if promise.shm_bytes is None:
        return Row("/dev/shm", text, "", Level.OK, f"node {node}")
    wanted = promise.shm_bytes * len(measured.nodes()[node])
    level = Level.OK if free[lowest] >= wanted else Level.FAIL
    note = "" if level is Level.OK else "pool: `kubernetes.shm_gib: auto`, or a memory-backed /dev/shm"
    return Row("/dev/shm", text, f"{wanted / 1e6:,.0f} MB", level, f"node {node}", note)


def _files(found: Mapping[int, int | None]) -> Row:
    counted = {rank: count for rank, count in found.items() if count is not None}
    if not counted:
        return Row("open files", "unlimited")
    lowest = min(counted, key=lambda rank: counted[rank])
    count = counted[lowest]
    level = Level.FAIL if count < FILES_FEW else Level.WARN if count < FILES_WANTED else Level.OK
    return Row(
        "open files", f"{count:,}", f"{FILES_WANTED:,}", level, f"rank {lowest}" if level is not Level.OK else ""
    )


def _memlock(found: Mapping[int, int | None], facts: Mapping[int, dict[str, Any]], promise: Expected) -> Row:
    limited = {rank: size for rank, size in found.items() if size is not None}
    wanted = promise.memlock or any(fact["infiniband"] for fact in facts.values())
    if not limited:
        return Row("pinned memory", "unlimited", "unlimited" if wanted else "")
    text = f"{min(limited.values()) / 1e6:,.1f} MB"
    if not wanted:
        return Row("pinned memory", text, "", Level.INFO, "", "no RDMA here")
    note = "IPC_LOCK in the pod, `ulimit -l unlimited` in the launched process"
    return Row("pinned memory", text, "unlimited", Level.FAIL, rank_words(list(limited)), note)


def clocks(found: Mapping[int, Clock], ranks: Mapping[int, Rank]) -> tuple[list[Row], list[Suspect]]:
    """How far ranks' clocks are apart; by the middle one, since the launcher's own may be the wrong one."""
    if not found:
        return [], []
    middle = median(clock.offset_s for clock in found.values())
    skew = {rank: max(0.0, abs(clock.offset_s - middle) - clock.error_s) for rank, clock in found.items()}
    worst = max(skew, key=lambda rank: skew[rank])
    text = f"{skew[worst] * 1e3:.0f} ms apart" if skew[worst] < 10 else f"{skew[worst]:.0f} s apart"
    if skew[worst] <= SKEW_WARN_S:
        return [Row("clocks", text, f"{SKEW_WARN_S * 1e3:.0f} ms")], []
    level = Level.FAIL if skew[worst] > SKEW_FAIL_S else Level.WARN
    row = Row("clocks", text, f"{SKEW_WARN_S * 1e3:.0f} ms", level, f"rank {worst}", "run chrony on every node")
    if level is Level.WARN:
        return [row], []
    node = ranks[worst].node
    what = f"its clock is {skew[worst]:.0f} s off"
    return [row], [Suspect(f"node {node}", what, "infra", (worst,), (node,), "run chrony on that node")]


def names(facts: Mapping[int, dict[str, Any]], ranks: Mapping[int, Rank]) -> tuple[list[Row], list[Suspect]]:
    """DNS: what each rank had to look up."""
    rows, suspects = [], []
    slowest: tuple[float, int, str] | None = None
    asked: set[str] = set()
    for rank, fact in facts.items():
        for name, answer in fact["names"].items():
            asked.add(name)
            if answer["error"]:
                text = f"{name}: {answer['error']}"
                rows.append(Row("names", text, "found", Level.FAIL, f"rank {rank}"))
                node = ranks[rank].node
                what, do = f"cannot find {name}: {answer['error']}", "look at that node's DNS: /etc/resolv.conf"
                suspects.append(Suspect(f"rank {rank}", what, "platform", (rank,), (node,), do))
            elif slowest is None or answer["seconds"] > slowest[0]:
                slowest = (answer["seconds"], rank, name)
    if not rows and slowest is not None:
        seconds, rank, name = slowest
        slow = seconds > DNS_SLOW_S
        text = f"{len(asked)} found, the slowest in {seconds * 1e3:.0f} ms"
        where = f"rank {rank}" if slow else ""
        rows.append(Row("names", text, "found", Level.WARN if slow else Level.OK, where, name if slow else ""))
    return rows, suspects


def storage(measured: Measured) -> tuple[list[Row], list[Suspect]]:
    """Disk and store, of one rank of each machine."""
    rows: list[Row] = []
    suspects: list[Suspect] = []
    ranks = measured.by_rank()
    parts: tuple[tuple[str, float, Owner], ...] = (
        ("disk", DISK_SLOW, "infra"),
        ("store", STORE_SLOW, "platform"),
    )
    for part, slow, owner in parts:
        for way in ("write", "read"):
            values = {
                rank: found[part][way]
                for rank, found in measured.storage.items()
                if found.get(part) and found[part].get(way) is not None
            }
            if values:
                rows.append(_slowest(f"{part} {way}", values, slow, ranks))
        for rank, found in measured.storage.items():
            error = (found.get(part) or {}).get("error")
            if not error:
                continue
            node = ranks[rank].node
            rows.append(Row(part, error, "", Level.FAIL, f"node {node}"))
            do = "free or repair that disk" if part == "disk" else "look at the pool's `storage:` and its credentials"
            suspects.append(Suspect(f"node {node}", f"the {part}: {error}", owner, (rank,), (node,), do))
    return rows, suspects


def _slowest(check: str, values: Mapping[int, float], slow: float, ranks: Mapping[int, Rank]) -> Row:
    lowest = min(values, key=lambda rank: values[rank])
    level = Level.WARN if values[lowest] < slow else Level.OK
    text = f"{values[lowest] / 1e6:,.0f} MB/s"
    if len(values) > 1:
        text = f"{text} ... {max(values.values()) / 1e6:,.0f} MB/s"
    return Row(check, text, f"{slow / 1e6:,.0f} MB/s", level, f"node {ranks[lowest].node}")
