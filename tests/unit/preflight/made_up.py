"""Measurements as a healthy machine would give them, for tests to spoil."""

from __future__ import annotations

from typing import Any

from warpbeam.preflight.busbw import Op
from warpbeam.preflight.measured import Clock, Collective, Link, Measured, Rank, Speed
from warpbeam.preflight.pairs import rounds

FACTS: dict[str, Any] = {
    "versions": {"torch": "2.13.0", "python": "3.11.9"},
    "open_files": 1 << 20,
    "memlock_bytes": None,
    "shm_free_bytes": 64 << 30,
    "shm_error": "",
    "infiniband": [],
    "names": {"here": {"seconds": 0.001, "error": ""}},
    "free_bytes": 64 << 30,
    "device_free_bytes": None,
    "cores": 8,
}
SPEED = Speed(flops=1e12, right=True, memory_bandwidth=1e10, cpu_share=1.0)


def ranks_on(nodes: int, per_node: int, device: str = "cpu") -> list[Rank]:
    """Ranks in blocks, each node a machine of its own."""
    found = []
    for rank in range(nodes * per_node):
        node = rank // per_node
        found.append(Rank(rank, f"gpu-{node}", f"machine-{node}", f"10.0.0.{node + 1}", 1000 + rank, device))
    return found


def links_of(ranks: list[Rank], *, quick: bool = False) -> list[Link]:
    """Every pair of the schedule, alive and alike."""
    nodes: dict[str, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node, []).append(rank.rank)
    pairs = [pair for turn in rounds(nodes, quick=quick) for pair in turn]
    return [Link(one, other, latency_s=1e-5, bandwidth=1e9) for one, other in sorted(pairs)]


def healthy(nodes: int = 2, per_node: int = 4, device: str = "cpu") -> Measured:
    """Everything in order."""
    ranks = ranks_on(nodes, per_node, device)
    count = len(ranks)
    return Measured(
        wanted=count,
        ranks=ranks,
        machine={rank.rank: dict(FACTS) for rank in ranks},
        storage={
            node * per_node: {
                "disk": {"error": "", "write": 1e9, "read": 2e9},
                "store": {"error": "", "write": 5e8, "read": 5e8},
            }
            for node in range(nodes)
        },
        clocks={rank.rank: Clock(0.001 * rank.rank, 0.01) for rank in ranks},
        speeds={rank.rank: SPEED for rank in ranks},
        rendezvous={rank.rank: "" for rank in ranks},
        links=links_of(ranks),
        collectives=[Collective(op, "all", 1 << 20, count, dict.fromkeys(range(count), 0.01)) for op in Op],
    )
