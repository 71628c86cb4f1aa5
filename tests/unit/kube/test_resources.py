"""How ranks are spread over pods, and what a pod asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kube.orders import CPU, TPU, job, on, order, pool
from warpbeam.errors import PlatformError
from warpbeam.kube.order import Kind
from warpbeam.kube.resources import pod_size, quantities, training_shapes


def shapes(accelerators: object, **kubernetes: object) -> list[tuple[str, int, int, int, int]]:
    """(group, accelerators of a pod, replicas, least, most)"""
    train = {"method": "sft", "max_steps": 10, "global_batch": 96, "lr": 1e-3}
    made = order(on=pool(dict(kubernetes)), of=job(resources={"accelerators": accelerators}, train=train))
    return [(s.name, s.size.accelerators, s.replicas, s.least, s.most) for s in training_shapes(made)]


def test_whole_nodes_and_what_is_left_over() -> None:
    assert shapes(4) == [("train", 4, 1, 1, 1)]
    assert shapes(8) == [("train", 8, 1, 1, 1)]
    assert shapes(32) == [("train", 8, 4, 4, 4)]
    assert shapes(12) == [("train", 8, 1, 1, 1), ("train-rest", 4, 1, 1, 1)]


def test_an_elastic_job_has_pods_of_one_size() -> None:
    assert shapes({"min": 8, "max": 32}) == [("train", 8, 1, 1, 4)]
    assert shapes({"min": 2, "max": 6}) == [("train", 2, 1, 1, 3)]
    assert shapes({"min": 12, "max": 24}) == [("train", 4, 3, 3, 6)]


def test_kueue_without_its_gate_takes_it_rigid() -> None:
    kueue = {"gang": "kueue", "queue": "q"}
    assert shapes({"min": 8, "max": 32}, **kueue) == [("train", 8, 4, 4, 4)]
    assert shapes({"min": 8, "max": 32}, **kueue, elastic_jobs_gate=True) == [("train", 8, 1, 1, 4)]


def test_a_size_of_the_command_line_is_kept() -> None:
    made = order(of=job(resources={"accelerators": {"min": 8, "max": 24}}), accelerators=16)
    assert [(s.least, s.most) for s in training_shapes(made)] == [(2, 2)]


def test_a_slice_is_whole_or_refused() -> None:
    found = training_shapes(order(on=on(TPU), of=job(resources={"accelerators": 16})))
    assert [(s.replicas, s.hosts, s.pods) for s in found] == [(1, 4, 4)]
    with pytest.raises(PlatformError, match="2 pods are no whole slices of 4 hosts"):
        training_shapes(order(on=on(TPU), of=job(resources={"accelerators": 8})))
    with pytest.raises(PlatformError, match="1 pods are no whole slices"):
        training_shapes(order(on=on(TPU), of=job(resources={"accelerators": 2})))
    elastic = job(resources={"accelerators": {"min": 4, "max": 16}})
    assert [(s.replicas, s.hosts) for s in training_shapes(order(on=on(TPU), of=elastic))] == [(1, 4)]


def test_a_pod_gets_its_share_of_the_node() -> None:
    made = order(on=pool({"fabric": {"resources": {"rdma/hca": 8}}}))
    half = quantities(made, pod_size(made, 4))
    assert (half["cpu"], half["memory"], half["nvidia.com/gpu"], half["rdma/hca"]) == ("48", "480Gi", "4", "4")
    assert quantities(made, pod_size(made, 1))["rdma/hca"] == "1"


def test_cpu_ranks_share_a_node() -> None:
    """8 cores, 2 for a rank: four ranks on a node of this pool."""
    made = order(on=on(CPU), of=job(resources={"accelerators": 6}))
    assert [(s.size.ranks, s.size.accelerators, s.replicas) for s in training_shapes(made)] == [(4, 0, 1), (2, 0, 1)]
    assert "nvidia.com/gpu" not in quantities(made, pod_size(made, 4))


def test_shared_memory() -> None:
    size = pod_size(order(), 8)
    assert size.shm_gib == size.object_store_gib + 8 < size.memory_gib
    stated = pod_size(order(on=pool({"shm_gib": 64})), 8)
    assert (stated.shm_gib, stated.object_store_gib) == (64, 56)
    with pytest.raises(PlatformError, match="nothing of the 120 GiB that a pod of 1 ranks has"):
        pod_size(order(on=pool({"shm_gib": 200})), 1)


@given(st.integers(1, 32), st.integers(2, 4000), st.integers(32, 400))
def test_every_rank_has_a_place_and_no_node_gives_more_than_it_has(ranks: int, memory_gib: int, cpus: int) -> None:
    train = {"method": "sft", "max_steps": 10, "global_batch": ranks, "lr": 1e-3}
    of = job(resources={"accelerators": ranks}, train=train)
    made = order(Kind.RAYCLUSTER, on=pool({"node": {"cpus": cpus, "memory_gib": memory_gib}}), of=of)
    if memory_gib < 16:
        return  # a rank has less than 2 GiB: refused
    found = training_shapes(made)
    assert sum(shape.size.ranks * shape.pods for shape in found) == ranks
    for shape in found:
        assert shape.size.memory_gib <= memory_gib
        assert shape.size.cpus <= cpus
        assert 0 < shape.size.object_store_gib <= shape.size.shm_gib < shape.size.memory_gib
