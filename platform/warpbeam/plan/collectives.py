"""How long a collective takes: alpha-beta, with one level inside a domain of fast links and one between domains.

A ring over n ranks moves (n-1)/n of the whole volume through each rank (Thakur et al. 2005; Patarasu and Yuan 2009).
Where a group spans domains, the bytes that enter a domain are shared by the NICs of the ranks the group has in it. Each
hop costs its latency (alpha). Volumes are bytes, results seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fabric:
    """Achieved bandwidths (bytes/s of one accelerator, one direction) and latencies (s) of the two levels.

    Attributes:
        domain: accelerators that reach each other over the fast links.
    """

    domain: int
    link: float
    nic: float
    link_latency: float
    nic_latency: float

    def all_gather(self, volume: float, ranks: int, stride: int = 1) -> float:
        """Every rank ends up with `volume`, of which it had one part in `ranks`.

        Ranks of the group are `stride` accelerators apart (those between belong to other groups).
        """
        if ranks <= 1:
            return 0.0
        here = max(1, min(ranks, self.domain // stride))
        domains = -(-ranks // here)
        inside = volume * (here - 1) / here / self.link + self.link_latency * (here - 1)
        if domains == 1:
            return inside
        between = volume * (domains - 1) / domains / (here * self.nic) + self.nic_latency * (domains - 1)
        return max(inside, between)

    def reduce_scatter(self, volume: float, ranks: int, stride: int = 1) -> float:
        """The same bytes the other way."""
        return self.all_gather(volume, ranks, stride)

    def all_reduce(self, volume: float, ranks: int, stride: int = 1) -> float:
        """A reduce-scatter and an all-gather: 2 (n-1)/n of the volume."""
        return 2.0 * self.all_gather(volume, ranks, stride)

    def all_to_all(self, volume: float, ranks: int, far_share: float = 1.0) -> float:
        """Each rank sends `volume` in equal parts to all ranks; `far_share` of what leaves the domain really does."""
        if ranks <= 1:
            return 0.0
        here = max(1, min(ranks, self.domain))
        inside = volume * (here - 1) / ranks / self.link + self.link_latency
        if ranks == here:
            return inside
        return max(inside, far_share * volume * (ranks - here) / ranks / self.nic + self.nic_latency)

    def send(self, volume: float, distance: int) -> float:
        """To the rank `distance` accelerators away."""
        if distance < self.domain:
            return volume / self.link + self.link_latency
        return volume / self.nic + self.nic_latency
