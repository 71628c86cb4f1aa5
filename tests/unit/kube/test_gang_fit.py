"""All of a gang or nothing of it, in the order in which they came, and never more than a node has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warpbeam.kube.gang_fit import Gang, Pods, Room, decide, place, pods_of, requests, rooms, shortage

GPU = "nvidia.com/gpu"


def node(name: str, gpus: int = 8, *, ready: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": more.get("labels", {})},
        "spec": {"taints": more.get("taints", []), "unschedulable": more.get("cordoned", False)},
        "status": {
            "allocatable": {"cpu": "96", "memory": "960Gi", "pods": "110", GPU: str(gpus)},
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


def pod(on: str | None, gpus: int, phase: str = "Running") -> dict[str, Any]:
    limits = {"cpu": "1", "memory": "1Gi", GPU: str(gpus)}
    spec: dict[str, Any] = {"containers": [{"name": "a", "resources": {"limits": limits, "requests": limits}}]}
    return {"spec": spec | ({"nodeName": on} if on else {}), "status": {"phase": phase}}


def gang(name: str, pods: int, gpus: int = 8, *, created: str = "", priority: int = 0, **more: Any) -> Gang:
    asked = {GPU: Decimal(gpus), "cpu": Decimal(1), "pods": Decimal(1)}
    return Gang(name, (Pods("train", pods, asked, **more),), created, priority)


def entering(gangs: Sequence[Gang], there: Sequence[Room]) -> list[str]:
    return [decision.gang for decision in decide(gangs, there) if decision.enters]


def test_what_is_free_is_what_pods_have_not_asked_for() -> None:
    there = rooms([node("a"), node("b")], [pod("a", 6), pod("b", 8, "Succeeded"), pod(None, 8), pod("b", 1)])
    assert {room.node: room.free[GPU] for room in there} == {"a": 2, "b": 7}


def test_closed_nodes_are_not_counted() -> None:
    nodes = [node("a", ready=False), node("b", cordoned=True), node("c")]
    assert [room.node for room in rooms(nodes, [])] == ["c"]


def test_a_pod_asks_for_its_largest_init_container_where_that_is_more() -> None:
    spec = {
        "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "1"}}},
            {"name": "b", "resources": {"limits": {"cpu": "500m"}}},
        ],
        "initContainers": [{"name": "c", "resources": {"requests": {"cpu": "4", "memory": "1Gi"}}}],
        "overhead": {"cpu": "250m"},
    }
    assert requests(spec) == {"cpu": Decimal("4.25"), "memory": Decimal(1 << 30), "pods": 1}


def test_labels_and_taints_keep_pods_out() -> None:
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    tainted = rooms([node("a", taints=[taint], labels={"gpu": "h100"})], [])
    assert place(gang("x", 1), tainted) is None
    for toleration in ({"key": GPU, "operator": "Exists"}, {"key": GPU, "value": "present"}, {"operator": "Exists"}):
        assert place(gang("x", 1, tolerations=[toleration]), tainted) is not None
    assert place(gang("x", 1, tolerations=[{"key": GPU, "value": "other"}]), tainted) is None
    wrong = gang("x", 1, tolerations=[{"operator": "Exists"}], node_selector={"gpu": "a100"})
    assert place(wrong, tainted) is None
    assert "none of 1 nodes has the labels and taints" in shortage(wrong, tainted)
    soft = rooms([node("a", taints=[taint | {"effect": "PreferNoSchedule"}])], [])
    assert place(gang("x", 1), soft) is not None


def test_twelve_wanted_eight_there_then_eight_more() -> None:
    twelve = gang("twelve", 3, 4)
    assert decide([twelve], rooms([node("a")], []))[0].why.startswith(
        "would not fit into the empty cluster: 1 of 3 train pods"
    )
    assert entering([twelve], rooms([node("a"), node("b")], [])) == ["twelve"]


def test_the_sentence_counts_what_is_short() -> None:
    there = rooms([node("a"), node("b")], [pod("a", 6), pod("b", 5)])
    assert shortage(gang("x", 2), there) == (
        "2 of 2 train pods have no place: each needs 8 nvidia.com/gpu, the most that is free is 3 on b, "
        "5 nvidia.com/gpu short"
    )


def test_of_two_gangs_for_one_place_the_first_enters() -> None:
    there = rooms([node("a"), node("b")], [])
    gangs = [gang("late", 2, created="2026-01-02"), gang("early", 2, created="2026-01-01")]
    assert entering(gangs, there) == ["early"]
    assert entering([gang("late", 2, created="2026-01-02", priority=1), gangs[1]], there) == ["late"]


def test_a_small_gang_does_not_slip_past_one_that_waits() -> None:
    there = rooms([node("a"), node("b")], [pod("a", 8)])
    gangs = [gang("large", 2, created="1"), gang("small", 1, created="2")]
    assert [(found.gang, found.enters) for found in decide(gangs, there)] == [("large", False), ("small", False)]
    assert decide(gangs, there)[1].why == "waits behind large"


def test_but_it_passes_one_that_could_never_start() -> None:
    there = rooms([node("a"), node("b")], [])
    assert entering([gang("monster", 9, created="1"), gang("small", 1, created="2")], there) == ["small"]


def test_pods_are_read_from_what_is_rendered() -> None:
    from tests.unit.kube.orders import order
    from warpbeam.kube.render import render

    spec = render(order()).documents[-1]["spec"]["rayClusterSpec"]
    (group,) = spec["workerGroupSpecs"]
    pods = pods_of("train", group["replicas"], group["template"]["spec"])
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    nodes = [node(name, labels={"gpu": "h100"}, taints=[taint]) for name in "ab"]
    for found in nodes:
        found["status"]["allocatable"]["ephemeral-storage"] = "500Gi"
    assert place(Gang("x", (pods,)), rooms(nodes, [])) is not None
    assert place(Gang("x", (pods,)), rooms(nodes, [pod("a", 1)])) is None


ROOMS = st.lists(st.integers(0, 8), min_size=1, max_size=6).map(
    lambda free: [
        Room(f"n{i}", {GPU: Decimal(8), "pods": Decimal(110)}, {GPU: Decimal(gpus), "pods": Decimal(110)})
        for i, gpus in enumerate(free)
    ]
)
SHAPES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), min_size=1, max_size=3)


def mixed(name: str, shapes: Sequence[tuple[int, int]], created: str = "") -> Gang:
    asked = [{GPU: Decimal(gpus), "pods": Decimal(1)} for _, gpus in shapes]
    return Gang(name, tuple(Pods(f"g{i}", count, asked[i]) for i, (count, _) in enumerate(shapes)), created)


def used(before: Sequence[Room], after: Sequence[Room]) -> Mapping[str, Decimal]:
    now = {room.node: room.free[GPU] for room in after}
    return {room.node: room.free[GPU] - now[room.node] for room in before}


@given(SHAPES, ROOMS)
def test_a_placed_gang_is_whole_and_fits_on_every_node(shapes: list[tuple[int, int]], there: list[Room]) -> None:
    after = place(mixed("x", shapes), there)
    if after is None:
        assert shortage(mixed("x", shapes), there)
        return
    assert sum(used(there, after).values()) == sum(count * gpus for count, gpus in shapes)
    assert all(room.free[GPU] >= 0 for room in after)
    assert shortage(mixed("x", shapes), there) == ""


@given(st.integers(1, 12), st.integers(1, 8), ROOMS)
def test_alike_pods_fit_exactly_when_nodes_have_so_many_places(pods: int, gpus: int, there: list[Room]) -> None:
    places = sum(int(room.free[GPU]) // gpus for room in there)
    assert (place(gang("x", pods, gpus=gpus), [_with_cpu(room) for room in there]) is not None) == (pods <= places)


@given(st.lists(SHAPES, min_size=2, max_size=4), ROOMS)
def test_those_that_enter_fit_together(many: list[list[tuple[int, int]]], there: list[Room]) -> None:
    gangs = [mixed(f"g{i}", shapes, created=str(i)) for i, shapes in enumerate(many)]
    decisions = {decision.gang: decision for decision in decide(gangs, there)}
    asked = sum(
        count * gpus for found in gangs if decisions[found.name].enters for count, gpus in many[int(found.name[1:])]
    )
    assert asked <= sum(room.free[GPU] for room in there)
    assert all(decision.enters or decision.why for decision in decisions.values())
    assert decide(list(reversed(gangs)), there) == decide(gangs, there), "the order of the listing decides nothing"


def _with_cpu(room: Room) -> Room:
    more = {"cpu": Decimal(96)}
    return Room(room.node, {**room.total, **more}, {**room.free, **more})
