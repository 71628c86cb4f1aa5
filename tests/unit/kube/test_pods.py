"""Every pod: what it may do, what it asks for, what it knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.kube.orders import CPU, IMAGE, job, on, order, pod_templates, pool
from tests.unit.kube.pod_security import violations
from warpbeam.kube import names, pods
from warpbeam.kube.order import Kind
from warpbeam.kube.render import render
from warpbeam.kube.resources import pod_size
from warpbeam.launch import pre_stop

GROUP = {"name": "prepare", "cpus": 8, "memory_gib": 32, "max": 4}
KINDS = [Kind.RAYJOB, Kind.RAYCLUSTER, Kind.RAYSERVICE, Kind.RAYCRONJOB]


def environment(spec: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable for variable in spec["containers"][0]["env"]}


@pytest.mark.parametrize("kind", KINDS)
def test_pods_are_restricted_and_mount_nothing_of_a_host(kind: Kind) -> None:
    for made in (order(kind), order(kind, on=pool({"cpu_groups": [GROUP]})), order(kind, on=on(CPU))):
        found = [template["spec"] for template in pod_templates(made)]
        assert len(found) >= 2
        for spec in found:
            assert list(violations(spec)) == []


def test_the_autoscaler_beside_the_head_is_restricted_too() -> None:
    cluster = render(order(Kind.RAYCLUSTER, on=pool({"cpu_groups": [GROUP]}))).documents[-1]
    security = cluster["spec"]["autoscalerOptions"]["securityContext"]
    assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize("kind", KINDS)
def test_requests_are_limits(kind: Kind) -> None:
    for spec in (template["spec"] for template in pod_templates(order(kind))):
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            asked = container["resources"]
            assert asked["requests"] == asked["limits"]
            assert {"cpu", "memory"} <= set(asked["limits"])
            assert container["image"] == IMAGE


def test_only_ranks_get_accelerators() -> None:
    made = order(on=pool({"cpu_groups": [GROUP]}))
    spec = render(made).documents[-1]["spec"]["rayClusterSpec"]
    ask = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    limits = [group["template"]["spec"]["containers"][0]["resources"]["limits"] for group in ask]
    assert [limit.get("nvidia.com/gpu") for limit in limits] == [None, "8", None]


def test_a_fabric_that_needs_privilege_says_so() -> None:
    fabric = {"resources": {"rdma/hca": 8}, "networks": ["rail-0", "rail-1"], "needs_privileged": True}
    made = order(on=pool({"fabric": fabric | {"env": {"NCCL_IB_HCA": "mlx5"}}}))
    template = pods.worker(made, pod_size(made, 8))
    assert list(violations(template["spec"])) == ["ray-worker: added capabilities"]
    assert template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "rail-0, rail-1"
    assert environment(template["spec"])["NCCL_IB_HCA"]["value"] == "mlx5"
    assert list(violations(pods.head(made)["spec"])) == []


def test_secrets_are_named_never_held() -> None:
    secrets = [{"env": "HF_TOKEN", "from": "hf-token"}, {"env": "CERT", "from": "cert"}]
    made = order(of=job(secrets=secrets))
    spec = pods.head(made)["spec"]
    token = environment(spec)["HF_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert token == {"name": "hf", "key": "token"}
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert mounts["/etc/ssl/corp.pem"] == {
        "name": "secret-0",
        "mountPath": "/etc/ssl/corp.pem",
        "subPath": "ca.pem",
        "readOnly": True,
    }
    assert "HF_TOKEN" not in json.dumps(pods.head(order())), "a job gets the secrets that it asks for"


def test_workload_identity_needs_no_key() -> None:
    made = order(on=pool({"credentials": {"workload_identity": True}}))
    assert not [name for name in environment(pods.head(made)["spec"]) if name.startswith("AWS_")]
    assert "AWS_ACCESS_KEY_ID" in environment(pods.head(order())["spec"])


def test_a_worker_that_waits_for_its_head_hears_that_it_must_go() -> None:
    """`tests/kube/test_ends.py` shows it: else it holds its accelerators for the whole grace."""
    assert pods.worker(order(), pod_size(order(), 8))["spec"]["shareProcessNamespace"] is True


def test_the_platforms_copy_of_the_pool_is_read() -> None:
    for spec in (pods.head(order())["spec"], pods.worker(order(), pod_size(order(), 8))["spec"]):
        assert environment(spec)["WARPBEAM_POOL"]["value"] == "/etc/warpbeam/pool.yaml"
        assert {"name": "pool", "configMap": {"name": "warpbeam-pool-gpus"}} in spec["volumes"]


def test_a_lost_node_costs_a_minute() -> None:
    spec = pods.worker(order(), pod_size(order(), 8))["spec"]
    lost = [taint for taint in spec["tolerations"] if taint.get("effect") == "NoExecute"]
    assert [(taint["key"].rpartition("/")[2], taint["tolerationSeconds"]) for taint in lost] == [
        ("not-ready", 20),
        ("unreachable", 20),
    ]
    assert spec["tolerations"][0] == {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_there_is_time_for_the_emergency_save() -> None:
    spec = pods.head(order(on=pool({"deadlines": {"save_grace_s": 200}})))["spec"]
    command = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["python", "-m", pre_stop.__name__, "head", "--grace-s", "200"]
    assert spec["terminationGracePeriodSeconds"] > 200


def test_shared_memory_is_a_memory_volume_of_the_jobs_size() -> None:
    made = order()
    size = pod_size(made, 8)
    spec = pods.worker(made, size)["spec"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{size.shm_gib}Gi"}} in spec["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]


def test_ranks_seek_each_other_and_not_the_head() -> None:
    rack = {"key": "example.com/rack", "required": True}
    made = order(on=pool({"topology": rack}))
    affinity = pods.worker(made, pod_size(made, 8))["spec"]["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "example.com/rack"
    assert term["labelSelector"]["matchLabels"] == {names.RUN: "tiny", names.ROLE: "ranks"}
    assert names.ROLE not in pods.head(made)["metadata"]["labels"]


def test_kueue_places_pod_sets_itself() -> None:
    made = order(on=pool({"topology": {"key": "example.com/rack"}, "gang": "kueue", "queue": "q"}))
    template = pods.worker(made, pod_size(made, 8))
    assert template["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"] == "example.com/rack"
    assert "affinity" not in template["spec"]


def test_the_submitter_fetches_the_bundle_with_its_own_rights() -> None:
    spec = pods.submitter(order())["spec"]
    (fetch,) = spec["initContainers"]
    assert fetch["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert fetch["command"][:4] == ["python", "-m", "warpbeam.launch.fetch_bundle", order().bundle.uri]  # type: ignore[union-attr]
    assert "AWS_ACCESS_KEY_ID" in {variable["name"] for variable in fetch["env"]}
    (send,) = spec["containers"]
    assert "command" not in send, "KubeRay writes it"
    assert "env" not in send
    assert spec["automountServiceAccountToken"] is False
