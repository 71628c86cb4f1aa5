"""How large pods are: a pod gets of its node's CPUs and memory what its ranks have of the node's places.

Requests equal limits everywhere, so that nothing a run was promised is lent to others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warpbeam.errors import PlatformError
from warpbeam.job import Range
from warpbeam.kube.order import Order
from warpbeam.pool import GIB, Pool

OBJECT_STORE_SHARE: Final = 0.3
"""Of a pod's memory, and at most `OBJECT_STORE_MOST_GIB`: Ray's own defaults, stated so that /dev/shm can hold it."""
OBJECT_STORE_MOST_GIB: Final = 200
SHM_GIB_A_RANK: Final = 1
"""Beside the object store: NCCL's and the data loader's buffers."""
RAY_LOGS_GIB: Final = 10
"""Of a pod's disk, beside the scratch folder."""
SUBMITTER_CPUS: Final = 1
SUBMITTER_MEMORY_GIB: Final = 1


@dataclass(frozen=True)
class PodSize:
    """What one pod gets. Memory in GiB; /dev/shm is a part of it."""

    cpus: int
    memory_gib: int
    scratch_gib: int
    ranks: int = 0
    accelerators: int = 0
    shm_gib: int = 1
    object_store_gib: int = 1

    @property
    def object_store_bytes(self) -> int:
        """As `ray start` takes it."""
        return self.object_store_gib * GIB


@dataclass(frozen=True)
class Shape:
    """One worker group: alike pods. Replicas count slices where a slice has several hosts."""

    name: str
    size: PodSize
    replicas: int
    least: int
    most: int
    hosts: int = 1

    @property
    def pods(self) -> int:
        """When it is as large as it starts."""
        return self.replicas * self.hosts


def places_per_node(pool: Pool) -> int:
    """Ranks that a whole node takes: one an accelerator; on CPUs `cpus_per_worker` decides."""
    return pool.max_ranks // pool.nodes


def training_shapes(order: Order) -> list[Shape]:
    """The groups that hold all ranks of the plan: whole nodes, and one smaller pod where ranks are left over.

    An elastic job has pods of one size that divides its smallest and its largest number of ranks.
    """
    ranks, places = order.plan.world_size, places_per_node(order.pool)
    if order.elastic:
        least = _least_ranks(order)
        each = math.gcd(least, ranks, places)
        return [Shape("train", pod_size(order, each), least // each, least // each, ranks // each)]
    (whole, rest), hosts = divmod(ranks, places), order.kubernetes.num_of_hosts
    shapes = []
    if whole:
        shapes.append(_rigid("train", pod_size(order, places), whole, hosts))
    if rest:
        shapes.append(_rigid("train-rest" if whole else "train", pod_size(order, rest), 1, hosts))
    return shapes


def _rigid(name: str, size: PodSize, pods: int, hosts: int) -> Shape:
    """Raises PlatformError where a slice would not be whole."""
    if pods % hosts:
        raise PlatformError(
            f"{pods} pods are no whole slices of {hosts} hosts",
            why="the hosts of a TPU slice live and die together",
            fix="ask for whole slices: the accelerators of one, or a multiple",
            reason="no_whole_slice",
        )
    replicas = pods // hosts
    return Shape(name, size, replicas, replicas, replicas, hosts)


def _least_ranks(order: Order) -> int:
    asked = order.job.resources.accelerators
    assert isinstance(asked, Range)
    legal = [size for size in order.plan.legal_world_sizes if asked.min <= size <= order.plan.world_size]
    return min(legal, default=order.plan.world_size)


def pod_size(order: Order, ranks: int) -> PodSize:
    """The share of a node that so many ranks have.

    Raises:
        PlatformError: `shm_gib` leaves no memory beside it.
    """
    node, pool = order.kubernetes.node, order.pool
    share = ranks / places_per_node(pool)
    memory_gib = max(1, int(node.memory_gib * share))
    cpus = max(1, int(node.cpus * share))
    store_gib = _object_store_gib(memory_gib)
    buffers_gib, shm = SHM_GIB_A_RANK * ranks, order.kubernetes.shm_gib
    shm_gib = max(1, min(store_gib + buffers_gib, memory_gib - 1)) if shm == "auto" else shm
    if shm_gib >= memory_gib:
        raise PlatformError(
            f"/dev/shm of {shm_gib} GiB leaves nothing of the {memory_gib} GiB that a pod of {ranks} ranks has",
            why="what lies in /dev/shm counts as memory of the pod",
            fix="in the pool file: `shm_gib: auto`, or more `node.memory_gib`",
            reason="shm_too_large",
        )
    return PodSize(
        cpus=cpus,
        memory_gib=memory_gib,
        scratch_gib=order.kubernetes.scratch_gib,
        ranks=ranks,
        accelerators=0 if pool.is_cpu else ranks,
        shm_gib=shm_gib,
        object_store_gib=max(1, min(store_gib, shm_gib - buffers_gib)),
    )


def plain_size(cpus: int, memory_gib: int, scratch_gib: int) -> PodSize:
    """A pod without ranks: the head, or a worker of a CPU group."""
    store_gib = _object_store_gib(memory_gib)
    return PodSize(cpus, memory_gib, scratch_gib, shm_gib=store_gib, object_store_gib=store_gib)


def head_size(order: Order) -> PodSize:
    """What the pool gives a head."""
    share = order.kubernetes.head
    return plain_size(share.cpus, share.memory_gib, share.scratch_gib)


def _object_store_gib(memory_gib: int) -> int:
    return max(1, min(OBJECT_STORE_MOST_GIB, int(memory_gib * OBJECT_STORE_SHARE)))


def quantities(order: Order, size: PodSize) -> dict[str, str]:
    """A pod's requests, which are its limits, as Kubernetes writes them."""
    found = {
        "cpu": str(size.cpus),
        "memory": f"{size.memory_gib}Gi",
        "ephemeral-storage": f"{size.scratch_gib + RAY_LOGS_GIB}Gi",
    }
    resource = order.kubernetes.accelerator_resource
    if resource and size.accelerators:
        found[resource] = str(size.accelerators)
        share = size.accelerators / order.pool.accelerators_per_node
        for name, of_node in order.kubernetes.fabric.resources.items():
            found[name] = str(max(1, int(of_node * share)))
    return found


def requirements(asked: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """A container's `resources`."""
    return {"requests": dict(asked), "limits": dict(asked)}
