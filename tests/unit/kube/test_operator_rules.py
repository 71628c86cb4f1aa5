"""What we render is accepted; and each rule finds its mistake in a manifest that was spoilt by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kube.orders import CPU, TPU, job, on, order, pool
from warpbeam.errors import PlatformError
from warpbeam.kube.operator_rules import check, problems
from warpbeam.kube.order import Kind
from warpbeam.kube.render import render

Manifest = dict[str, Any]
GROUP = {"name": "prepare", "cpus": 8, "memory_gib": 32, "max": 4}
KUEUE = {"gang": "kueue", "queue": "default"}


def rendered(kind: Kind = Kind.RAYJOB, **kubernetes: Any) -> Manifest:
    return copy.deepcopy(render(order(kind, on=pool(kubernetes))).documents[-1])


@pytest.mark.parametrize("kind", [Kind.RAYJOB, Kind.RAYCLUSTER, Kind.RAYCRONJOB, Kind.RAYSERVICE])
@pytest.mark.parametrize("kubernetes", [{}, {"cpu_groups": [GROUP]}, KUEUE], ids=["gate", "autoscaled", "kueue"])
def test_what_is_rendered_is_accepted(kind: Kind, kubernetes: dict[str, Any]) -> None:
    assert problems(rendered(kind, **kubernetes)) == []


def test_other_pools_too() -> None:
    for base in (CPU, TPU):
        assert problems(render(order(Kind.RAYCLUSTER, on=on(base))).documents[-1]) == []


def cluster(manifest: Manifest) -> Manifest:
    found: Manifest = manifest["spec"]["rayClusterSpec"]
    return found


def _many_groups(manifest: Manifest) -> None:
    group = cluster(manifest)["workerGroupSpecs"][0]
    cluster(manifest)["workerGroupSpecs"] = [group | {"groupName": f"g{i}"} for i in range(7)]


MUTATIONS: list[tuple[str, Callable[[Manifest], object], str]] = [
    (
        "not shut down",
        lambda m: m["spec"].update(shutdownAfterJobFinishes=False),
        "suspend: needs shutdownAfterJobFinishes",
    ),
    (
        "deletion rules",
        lambda m: m["spec"].update(deletionStrategy={"deletionRules": [{"policy": "DeleteSelf"}]}),
        "deletionRules: do not go with shutdownAfterJobFinishes",
    ),
    (
        "ttl",
        lambda m: m["spec"].update(ttlSecondsAfterFinished=5, shutdownAfterJobFinishes=False, suspend=False),
        "ttlSecondsAfterFinished: needs",
    ),
    ("selector", lambda m: m["spec"].update(clusterSelector={"ray.io/cluster": "x"}), "does not go with suspend: true"),
    ("deadline", lambda m: m["spec"].update(activeDeadlineSeconds=0), "activeDeadlineSeconds: must be more than 0"),
    (
        "sidecar",
        lambda m: m["spec"].update(submissionMode="SidecarMode"),
        "submitterPodTemplate: is not taken in SidecarMode",
    ),
    ("long name", lambda m: m["metadata"].update(name="a" * 48), "has 48 characters; use at most 47"),
    ("digit", lambda m: m["metadata"].update(name="7b"), "must begin with a letter"),
    ("label", lambda m: m["metadata"]["labels"].update(x="a b"), "is no label's value"),
    (
        "less than least",
        lambda m: cluster(m)["workerGroupSpecs"][0].update(maxReplicas=1),
        "is 2, more than maxReplicas (1)",
    ),
    ("no bounds", lambda m: cluster(m)["workerGroupSpecs"][0].pop("minReplicas"), "needs minReplicas and maxReplicas"),
    (
        "idle",
        lambda m: cluster(m)["workerGroupSpecs"][0].update(idleTimeoutSeconds=5),
        "needs the autoscaler's version v2",
    ),
    ("twice", lambda m: cluster(m)["workerGroupSpecs"].append(cluster(m)["workerGroupSpecs"][0]), "stands there twice"),
]
IN_A_QUEUE: list[tuple[str, Callable[[Manifest], object], str]] = [
    ("autoscaler", lambda m: cluster(m).update(enableInTreeAutoscaling=True), "ElasticJobsViaWorkloadSlices"),
    (
        "not shut down",
        lambda m: m["spec"].update(shutdownAfterJobFinishes=False, suspend=False),
        "must be true in a queue of Kueue",
    ),
    ("groups", _many_groups, "are 7; beside head and submitter Kueue holds 6; leave g6 out"),
    ("head", lambda m: cluster(m)["workerGroupSpecs"][0].update(groupName="head"), "Kueue's word for the head"),
    (
        "selector",
        lambda m: m["spec"].update(clusterSelector={"a": "b"}, suspend=False),
        "is not taken in a queue of Kueue",
    ),
]


@pytest.mark.parametrize(("name", "spoil", "wrong"), MUTATIONS, ids=[name for name, _, _ in MUTATIONS])
def test_a_spoilt_manifest_is_found(name: str, spoil: Callable[[Manifest], object], wrong: str) -> None:
    manifest = rendered()
    spoil(manifest)
    assert any(wrong in str(problem) for problem in problems(manifest)), list(map(str, problems(manifest)))


@pytest.mark.parametrize(("name", "spoil", "wrong"), IN_A_QUEUE, ids=[name for name, _, _ in IN_A_QUEUE])
def test_what_kueue_refuses(name: str, spoil: Callable[[Manifest], object], wrong: str) -> None:
    manifest = rendered(**KUEUE)
    spoil(manifest)
    assert any(wrong in str(problem) for problem in problems(manifest)), list(map(str, problems(manifest)))


def test_autoscaler_v2_restarts_no_pod_in_place() -> None:
    manifest = rendered(cpu_groups=[GROUP])
    cluster(manifest)["workerGroupSpecs"][1]["template"]["spec"]["restartPolicy"] = "Always"
    (problem,) = problems(manifest)
    assert "must have restartPolicy Never" in str(problem)


def test_a_service_takes_its_port_from_the_head() -> None:
    """`tests/kube/test_long_serve.py` shows it: without the port a RayService is never ready."""
    manifest = rendered(Kind.RAYSERVICE)
    ports = manifest["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"]
    ports[:] = [port for port in ports if port["name"] != "serve"]
    (found,) = problems(manifest)
    assert "has no port named `serve`" in str(found)


def test_too_many_groups_for_kueue_are_refused_before_anything_is_rendered() -> None:
    groups = [GROUP | {"name": f"g{i}"} for i in range(5)]
    made = order(
        on=pool(KUEUE | {"elastic_jobs_gate": True, "cpu_groups": groups}), of=job(resources={"accelerators": 12})
    )
    with pytest.raises(PlatformError) as caught:
        render(made)
    assert "RayJob tiny would not be accepted" in caught.value.what
    assert "leave g4 out of the pool's cpu_groups" in caught.value.what


def test_other_kinds_are_not_looked_at() -> None:
    check([{"kind": "Role", "metadata": {"name": "A" * 99}}])
