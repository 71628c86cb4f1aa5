"""What was measured, as plain data: the judge reads it, `--json` prints it, tests make it up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from warpbeam.preflight.busbw import Op, bus_bandwidth


@dataclass(frozen=True)
class Rank:
    """One rank, as it introduced itself.

    Args:
        node: the name of its node, as Kubernetes or Ray say it.
        machine: what two nodes of a drill on one machine share: disk, clock, memory.
        address: where the others reach it.
        device: cpu or the accelerator's name.
    """

    rank: int
    node: str
    machine: str
    address: str
    pid: int
    device: str = "cpu"

    @property
    def on_cpu(self) -> bool:
        """Whether it computes on processor cores."""
        return self.device == "cpu"


class How(StrEnum):
    """How a rank was lost."""

    NEVER_JOINED = "never joined"
    DIED = "died"
    HANGS = "hangs"


@dataclass(frozen=True)
class Lost:
    """A rank that gave no answer.

    Args:
        phase: what it had been asked for.
        what: the evidence: an exit code, its last words, the state of its process.
        node: where it was to be, where that is known.
    """

    rank: int
    how: How
    phase: str
    after_s: float
    what: str = ""
    node: str = ""


@dataclass(frozen=True)
class Clock:
    """A rank's clock less the launcher's, and how far that can be off (half of the message's way and back)."""

    offset_s: float
    error_s: float


@dataclass(frozen=True)
class Speed:
    """What one rank's device does.

    Args:
        flops: of the matmul burn, FLOP/s.
        right: whether every product was the right one.
        memory_bandwidth: bytes/s read and written by a copy in the device's memory.
        to_device, from_device: bytes/s over the host link; None on CPUs.
        cpu_share: of the burn's wall time, in which its processor worked for it; None on accelerators.
        cpu_limit: cores that its control group allows; None where there is no limit.
    """

    flops: float
    right: bool
    memory_bandwidth: float
    to_device: float | None = None
    from_device: float | None = None
    cpu_share: float | None = None
    cpu_limit: float | None = None


@dataclass(frozen=True)
class Link:
    """Two ranks, alone with each other.

    Args:
        error: why nothing arrived; the speeds are then None.
        latency_s: one way of 8 bytes.
        bandwidth: bytes/s, the slower direction.
    """

    one: int
    other: int
    error: str = ""
    latency_s: float | None = None
    bandwidth: float | None = None

    @property
    def dead(self) -> bool:
        """Whether nothing arrives."""
        return bool(self.error)


@dataclass(frozen=True)
class Collective:
    """One operation at one size.

    Args:
        scope: all: of all ranks; inside: of each node's ranks, all nodes at once.
        ranks: in one group.
        seconds: of one operation, by rank.
        wrong: ranks whose result was not the right one.
    """

    op: Op
    scope: str
    size_bytes: int
    ranks: int
    seconds: dict[int, float]
    wrong: tuple[int, ...] = ()

    @property
    def mean_s(self) -> float:
        """Over ranks, as nccl-tests reports it."""
        return sum(self.seconds.values()) / len(self.seconds)

    @property
    def busbw(self) -> float:
        """Bytes/s."""
        return bus_bandwidth(self.op, self.size_bytes, self.mean_s, self.ranks)


@dataclass(frozen=True)
class ProgramSaid:
    """A line of one of nccl-tests' own programs; busbw in bytes/s."""

    op: Op
    size_bytes: int
    busbw: float
    wrong: int


@dataclass(frozen=True)
class Skipped:
    """Something that was not measured, and why."""

    what: str
    why: str


@dataclass
class Measured:
    """Everything. Facts about machines are by rank, or by the first rank of a machine (`storage`)."""

    wanted: int
    ranks: list[Rank] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    machine: dict[int, dict[str, Any]] = field(default_factory=dict)
    storage: dict[int, dict[str, Any]] = field(default_factory=dict)
    clocks: dict[int, Clock] = field(default_factory=dict)
    speeds: dict[int, Speed] = field(default_factory=dict)
    rendezvous: dict[int, str] = field(default_factory=dict)
    """Why a rank did not reach rank 0's store; empty where it did."""
    links: list[Link] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    programs: list[ProgramSaid] = field(default_factory=list)
    errors: list[tuple[str, int, str]] = field(default_factory=list)
    """(phase, rank, message) of probes that failed in a rank which goes on."""
    skipped: list[Skipped] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each phase took."""

    def nodes(self) -> dict[str, list[int]]:
        """Ranks by node, in the order of ranks."""
        return by_node(self.ranks)

    def crowded(self) -> bool:
        """Whether some machine has more ranks than cores to run them: how fast two of them talk is then chance."""
        for machine in {rank.machine for rank in self.ranks}:
            mine = [rank.rank for rank in self.ranks if rank.machine == machine and rank.on_cpu]
            cores = [int(self.machine[rank]["cores"]) for rank in mine if rank in self.machine]
            if cores and len(mine) > max(cores):
                return True
        return False

    def by_rank(self) -> dict[int, Rank]:
        """Those that came."""
        return {rank.rank: rank for rank in self.ranks}

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with busbw counted out."""
        value = asdict(self)
        for row, found in zip(value["collectives"], self.collectives, strict=True):
            row |= {"mean_s": found.mean_s, "busbw": found.busbw}
        return value


def by_node(ranks: Iterable[Rank]) -> dict[str, list[int]]:
    """Ranks by node, in the order of ranks."""
    found: dict[str, list[int]] = {}
    for rank in sorted(ranks, key=lambda one: one.rank):
        found.setdefault(rank.node, []).append(rank.rank)
    return found
