"""The gate on a real API server: its rights, its Lease, and who is let in. Nodes are objects made by hand."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes import config
from kubernetes.client import CoreV1Api

from tests.kube.apiserver import ApiServer
from tests.unit.kube.orders import job, order, pool
from warpbeam.errors import WarpbeamError
from warpbeam.kube import names
from warpbeam.kube.client import Cluster
from warpbeam.kube.gate_loop import LEASE, Gate
from warpbeam.kube.gate_manifests import cluster_rules, gate_manifests, lease_rules
from warpbeam.kube.lease import Place, hold, let_go
from warpbeam.kube.render import render
from warpbeam.pool import Image

Object = dict[str, Any]
GPU = "nvidia.com/gpu"


def add_node(server: ApiServer, name: str, gpus: int) -> None:
    core = CoreV1Api(config.new_client_from_config(str(server.kubeconfig("admin"))))
    taints = [{"key": GPU, "effect": "NoSchedule"}] if gpus else []
    core.create_node(
        {"metadata": {"name": name, "labels": {"gpu": "h100"} if gpus else {}}, "spec": {"taints": taints}}
    )
    room = {"cpu": "96", "memory": "960Gi", "pods": "110", "ephemeral-storage": "1000Gi", GPU: str(gpus)}
    ready = {"type": "Ready", "status": "True", "reason": "ByHand", "message": ""}
    core.patch_node_status(name, {"status": {"allocatable": room, "capacity": room, "conditions": [ready]}})
    # the taint that a new node gets until a controller has seen it: there is none here
    core.patch_node(name, {"spec": {"taints": taints or None}})


@pytest.fixture
def nodes(apiserver: ApiServer) -> Iterator[list[str]]:
    """One node for heads and one of eight GPUs, and no run of another test; what a test adds goes as well."""
    admin = apiserver.cluster()
    for left in admin.list("RayJob").items:
        admin.delete("RayJob", left["metadata"]["name"], left["metadata"]["namespace"])
    made = ["plain", "gpu-0"]
    add_node(apiserver, "plain", 0)
    add_node(apiserver, "gpu-0", 8)
    yield made
    for name in made:
        apiserver.cluster().delete("Node", name)


def suspended(cluster: Cluster, namespace: str, name: str, accelerators: int = 16) -> None:
    made = order(
        on=pool({"teams": {"red": {"namespace": namespace}}}),
        of=job(name=name, resources={"accelerators": accelerators}),
    )
    cluster.apply(copy.deepcopy(dict(render(made).documents[-1])))


def is_let_in(cluster: Cluster, namespace: str, name: str) -> bool:
    found = cluster.get("RayJob", name, namespace)
    assert found is not None
    return not found["spec"]["suspend"]


def grant(server: ApiServer, namespace: str, *, in_cluster: list[Object], here: list[Object]) -> None:
    admin, group = server.cluster(), "rbac.authorization.k8s.io"
    subject = {"apiGroup": group, "kind": "User", "name": "bob"}
    version = f"{group}/v1"
    for kind, metadata, rules in (
        ("ClusterRole", {"name": namespace}, in_cluster),
        ("Role", {"name": namespace, "namespace": namespace}, here),
    ):
        admin.apply({"apiVersion": version, "kind": kind, "metadata": metadata, "rules": rules})
        of = {"apiGroup": group, "kind": kind, "name": namespace}
        binding = {"apiVersion": version, "kind": f"{kind}Binding", "metadata": metadata}
        admin.apply({**binding, "subjects": [subject], "roleRef": of})


def revoke(server: ApiServer, namespace: str) -> None:
    for kind in ("ClusterRoleBinding", "ClusterRole"):
        server.cluster().delete(kind, namespace)


def gate(cluster: Cluster, namespace: str, said: list[str], me: str = "one") -> Gate:
    return Gate(cluster, Place(namespace, LEASE, me), said.append)


def test_sixteen_wanted_eight_present_then_sixteen(apiserver: ApiServer, nodes: list[str]) -> None:
    namespace, said = apiserver.namespace(), []
    admin = apiserver.cluster()
    grant(apiserver, namespace, in_cluster=cluster_rules(), here=lease_rules())
    suspended(admin, namespace, "first")
    suspended(admin, namespace, "second")
    keeper = gate(apiserver.cluster("bob"), namespace, said)
    keeper.turn()
    assert not is_let_in(admin, namespace, "first")
    first = admin.get("RayJob", "first", namespace)
    assert first is not None
    assert (
        "8 nvidia.com/gpu short" in first["metadata"]["annotations"][names.GATE]
        or "empty cluster" in (first["metadata"]["annotations"][names.GATE])
    )
    add_node(apiserver, "gpu-1", 8)
    nodes.append("gpu-1")
    keeper.turn()
    entered = [name for name in ("first", "second") if is_let_in(admin, namespace, name)]
    assert entered == ["first"], said
    keeper.turn()
    assert not is_let_in(admin, namespace, "second"), "the place of pods that are not there yet is taken"
    revoke(apiserver, namespace)


def test_of_two_gates_at_once_one_acts(apiserver: ApiServer, nodes: list[str]) -> None:
    namespace = apiserver.namespace()
    admin = apiserver.cluster()
    suspended(admin, namespace, "tiny", accelerators=8)
    said: dict[str, list[str]] = {"one": [], "two": []}
    made: list[int] = []
    barrier = threading.Barrier(2)
    keepers = [gate(apiserver.cluster(), namespace, lines, me) for me, lines in said.items()]

    def turn(keeper: Gate) -> None:
        barrier.wait(10)
        made.append(keeper.turn())

    threads = [threading.Thread(target=turn, args=(keeper,)) for keeper in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(made) == [0, 1]
    holders = [me for me, lines in said.items() if "this is the gate now" in lines]
    assert len(holders) == 1
    assert is_let_in(admin, namespace, "tiny")
    other = "two" if holders == ["one"] else "one"
    let_go(apiserver.cluster(), Place(namespace, LEASE, holders[0]))
    again: list[str] = []
    gate(apiserver.cluster(), namespace, again, other).turn()
    assert again[0] == "this is the gate now"


NEEDED = [(rule, verb) for rules in (cluster_rules(), lease_rules()) for rule in rules for verb in rule["verbs"]]


@pytest.mark.parametrize(
    ("resource", "verb"), [(resource, verb) for rule, verb in NEEDED for resource in rule["resources"]]
)
def test_less_does_not_do(apiserver: ApiServer, nodes: list[str], resource: str, verb: str) -> None:
    namespace, said = apiserver.namespace(), []
    admin = apiserver.cluster()
    suspended(admin, namespace, "tiny", accelerators=8)
    if (resource, verb) != ("leases", "create"):  # an earlier holder has left it
        hold(admin, Place(namespace, LEASE, "before"), datetime.now(UTC))
        let_go(admin, Place(namespace, LEASE, "before"))
    less = [_without(rules, resource, verb) for rules in (cluster_rules(), lease_rules())]
    grant(apiserver, namespace, in_cluster=less[0], here=less[1])
    keeper = gate(apiserver.cluster("bob"), namespace, said)
    try:
        keeper.turn()
        refused = not is_let_in(admin, namespace, "tiny")
    except WarpbeamError as error:
        refused = error.reason == "kube_forbidden"
    revoke(apiserver, namespace)
    assert refused, said


def _without(rules: list[Object], resource: str, verb: str) -> list[Object]:
    found = []
    for rule in copy.deepcopy(rules):
        for name in rule["resources"]:
            verbs = [each for each in rule["verbs"] if (name, each) != (resource, verb)]
            found += [{**rule, "resources": [name], "verbs": verbs}] if verbs else []
    return found


def test_its_manifests_are_taken_in_a_namespace_that_enforces_restricted(apiserver: ApiServer) -> None:
    cluster = apiserver.cluster()
    name = f"gate-{datetime.now(UTC):%H%M%S%f}"
    for document in gate_manifests(Image(ref=f"r.test/i@sha256:{'a' * 64}"), namespace=name):
        made = copy.deepcopy(document)
        if document["kind"].startswith("ClusterRole"):
            continue  # the API server is shared by tests: these are tried by the tests above
        cluster.apply(made)
    deployment = cluster.get("Deployment", "warpbeam-gate", name)
    assert deployment is not None
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gate", "namespace": name}}
    cluster.apply({**pod, "spec": deployment["spec"]["template"]["spec"]}, dry_run=True)
