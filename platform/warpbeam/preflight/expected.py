"""What a pool promises of its machines: figures to hold the measured ones against.

Of accelerators the maker's datasheet, or what the pool states in its place (`accelerator.figures`). Of CPUs only what
the pool states: no datasheet knows how fast some machine's cores are, so their ranks are held against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from warpbeam.preflight.busbw import Op

if TYPE_CHECKING:
    from warpbeam.pool import Pool

SHM_PER_RANK: Final = 160 << 20
"""NCCL's shared memory for one rank of a full node, in bytes: 1.2 GB for eight."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Figures of one rank, in FLOP/s and bytes/s; None where nobody promised anything.

    Args:
        kind: the pool's word for the accelerator; None without a pool.
        inside: of the links between the ranks of one node, in one direction.
        across: of one rank's share of the network between nodes, in one direction.
        source: where they come from, in words.
        versions: that the pool's image is said to hold.
        shm_bytes: /dev/shm that a node must have free for each of its ranks.
        memlock: whether ranks must be able to pin memory without limit (RDMA).
    """

    kind: str | None = None
    flops: float | None = None
    memory_bandwidth: float | None = None
    host_bandwidth: float | None = None
    inside: float | None = None
    across: float | None = None
    source: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    shm_bytes: int | None = None
    memlock: bool = False

    @property
    def on_cpu(self) -> bool:
        """Whether ranks are to compute on processor cores."""
        return self.kind in (None, "cpu")

    def busbw(self, op: Op, per_node: int, world_size: int) -> float | None:
        """What a collective's bus bandwidth can reach at most, bytes/s.

        Inside a node it is the links' own speed. A ring over nodes crosses each node's network once, on all of its
        ranks' shares together; of an all-to-all each rank sends the part that leaves its node over its own share.
        """
        if world_size <= per_node:
            return self.inside
        if self.across is None:
            return None
        if op is Op.ALL_TO_ALL:
            return self.across * (world_size - 1) / (world_size - per_node)
        total = self.across * per_node
        return total if self.inside is None or per_node == 1 else min(total, self.inside)


def expected_of(pool: Pool | None, ranks: int) -> Expected:
    """The promise of a pool to a job of so many ranks.

    Raises UserError where nobody knows the pool's accelerator.
    """
    if pool is None:
        return Expected()
    versions = dict(pool.image.versions) if pool.image is not None else {}
    stated = pool.accelerator.figures
    if pool.is_cpu:
        return Expected(
            kind="cpu",
            flops=stated.get("peak_fp32"),
            memory_bandwidth=stated.get("memory_bandwidth"),
            inside=stated.get("link_bandwidth"),
            across=stated.get("nic_bandwidth"),
            source=f"figures of pool {pool.name}" if stated else "",
            versions=versions,
        )
    from warpbeam.plan.machine import machine_of

    machine = machine_of(pool, ranks)
    chip = machine.chip
    fabric = pool.kubernetes.fabric.resources if pool.kubernetes is not None else {}
    return Expected(
        kind=pool.accelerator.kind,
        flops=chip.peak("bf16"),
        memory_bandwidth=chip.memory_bandwidth,
        host_bandwidth=chip.host_bandwidth,
        inside=chip.link_bandwidth,
        across=chip.nic_bandwidth,
        source=f"{chip.name}'s datasheet" + (f", figures of pool {pool.name}" if stated else ""),
        versions=versions,
        shm_bytes=SHM_PER_RANK,
        memlock=bool(fabric),
    )
