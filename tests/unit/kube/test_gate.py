"""The gate's decisions: the whole gang or nothing, what was promised stays promised, what is late is given back."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.unit.kube.orders import job as of
from tests.unit.kube.orders import order, pool
from tests.unit.kube.test_gang_fit import node
from warpbeam.kube import names
from warpbeam.kube.fate import fate_of
from warpbeam.kube.gate import Holdings, Step, gang_of, is_ours, steps
from warpbeam.kube.render import render
from warpbeam.kube.why import Seen, verdict

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
TAINT = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]


def suspended(name: str = "tiny", created: str = "2026-01-01T11:00:00Z", *, accelerators: int = 16) -> Object:
    made: Object = copy.deepcopy(
        dict(render(order(of=of(name=name, resources={"accelerators": accelerators}))).documents[-1])
    )
    made["metadata"] |= {"creationTimestamp": created, "resourceVersion": "7", "uid": f"uid-{name}"}
    return made


def after(job: Object, step: Step) -> Object:
    """The merge patch, as the API server would do it."""
    changed = copy.deepcopy(job)
    annotations = changed["metadata"].setdefault("annotations", {})
    for key, value in step.change["metadata"].get("annotations", {}).items():
        if value is None:
            annotations.pop(key, None)
        else:
            annotations[key] = value
    changed["spec"] |= step.change.get("spec", {})
    return changed


def gpus(count: int) -> list[Object]:
    """Nodes of 8, and one without any for heads and submitters."""
    nodes = [node(f"gpu-{number}", labels={"gpu": "h100"}, taints=TAINT) for number in range(count)]
    nodes.append(node("cpu-0", gpus=0))
    for made in nodes:
        made["status"]["allocatable"]["ephemeral-storage"] = "1000Gi"
    return nodes


def test_the_whole_gang_or_nothing() -> None:
    (step,) = steps(Holdings([suspended()], gpus(1)), NOW)
    assert "spec" not in step.change
    why = step.change["metadata"]["annotations"][names.GATE]
    assert "1 of 2 train pods have no place" in why
    assert "8 nvidia.com/gpu short" in why
    waiting = after(suspended(), step)
    assert steps(Holdings([waiting], gpus(1)), NOW) == [], "the same is not said twice"
    (step,) = steps(Holdings([waiting], gpus(2)), NOW)
    assert step.change["spec"] == {"suspend": False}
    assert step.change["metadata"]["resourceVersion"] == "7"
    entered = after(waiting, step)
    assert names.GATE not in entered["metadata"]["annotations"]
    assert steps(Holdings([entered], gpus(2)), NOW) == []


def test_two_gangs_compete_and_exactly_one_starts() -> None:
    first, second = suspended("first"), suspended("second", "2026-01-01T11:30:00Z")
    made = steps(Holdings([second, first], gpus(2)), NOW)
    entered = [step.name for step in made if step.change.get("spec") == {"suspend": False}]
    assert entered == ["first"]
    entered_job = after(first, next(step for step in made if step.name == "first"))
    made = steps(Holdings([second, entered_job], gpus(2)), NOW)
    assert [step.change.get("spec") for step in made] == [None], "its pods are not there yet, but its place is taken"


def test_bound_pods_are_not_counted_twice() -> None:
    running = suspended("first")
    running["spec"]["suspend"] = False
    running["status"] = {"jobDeploymentStatus": "Running", "rayClusterName": "first-abc"}
    pods = [_bound(running, "headgroup", "cpu-0"), _bound(running, "train", "gpu-0"), _bound(running, "train", "gpu-1")]
    (step,) = steps(Holdings([running, suspended("second")], gpus(4), pods), NOW)
    assert (step.name, step.change["spec"]) == ("second", {"suspend": False})


def _bound(job: Object, group: str, on: str) -> Object:
    cluster = job["spec"]["rayClusterSpec"]
    spec = cluster["headGroupSpec"]["template"]["spec"]
    if group != "headgroup":
        spec = next(found for found in cluster["workerGroupSpecs"] if found["groupName"] == group)["template"]["spec"]
    labels = {"ray.io/cluster": job["status"]["rayClusterName"], "ray.io/group": group}
    metadata = {"name": f"{group}-{on}", "namespace": "team-red", "labels": labels}
    return {"metadata": metadata, "spec": {**spec, "nodeName": on}, "status": {"phase": "Running"}}


def test_for_an_elastic_job_the_gang_is_the_minimum() -> None:
    elastic = suspended(accelerators=16)
    elastic["spec"]["rayClusterSpec"]["workerGroupSpecs"][0] |= {"replicas": 1, "minReplicas": 1, "maxReplicas": 2}
    (step,) = steps(Holdings([elastic], gpus(1)), NOW)
    assert step.change["spec"] == {"suspend": False}


def test_a_quota_that_could_hold_half_lets_nobody_in() -> None:
    quota = {
        "metadata": {"name": "warpbeam", "namespace": "team-red"},
        "status": {
            "hard": {"requests.nvidia.com/gpu": "24", "pods": "100"},
            "used": {"requests.nvidia.com/gpu": "0", "pods": "0"},
        },
    }
    first, second = suspended("first"), suspended("second", "2026-01-01T11:30:00Z")
    made = {step.name: step for step in steps(Holdings([first, second], gpus(4), quotas=[quota]), NOW)}
    assert made["first"].change["spec"] == {"suspend": False}
    why = made["second"].change["metadata"]["annotations"][names.GATE]
    assert why == "the namespace's quota warpbeam is short by 8 nvidia.com/gpu"
    elsewhere = {**quota, "metadata": {"name": "warpbeam", "namespace": "team-blue"}}
    made = {step.name: step for step in steps(Holdings([second], gpus(4), quotas=[elsewhere]), NOW)}
    assert made["second"].change["spec"] == {"suspend": False}


def test_what_does_not_run_by_its_deadline_gives_everything_back_and_stays_out() -> None:
    job = suspended()
    job["spec"]["suspend"] = False
    job["metadata"]["annotations"][names.RELEASED] = "2026-01-01T11:00:00+00:00"
    job["status"] = {"jobDeploymentStatus": "Initializing"}
    deadline = timedelta(seconds=job["spec"]["preRunningDeadlineSeconds"] + 61)
    released = datetime(2026, 1, 1, 11, 0, tzinfo=UTC)
    assert steps(Holdings([job], gpus(2)), released + deadline - timedelta(seconds=2)) == []
    (step,) = steps(Holdings([job], gpus(2)), released + deadline)
    assert step.change["spec"] == {"suspend": True}
    out = after(job, step)
    assert names.GIVEN_BACK in out["metadata"]["annotations"]
    assert steps(Holdings([out], gpus(2)), released + deadline) == []
    assert verdict(Seen(out)).reason == "deadline"
    assert fate_of(Seen(out)) is not None, "whoever follows it learns that this is its end"
    again = {**job, "status": {"jobDeploymentStatus": "Initializing", "startTime": "2026-01-01T11:20:00Z"}}
    assert steps(Holdings([again], gpus(2)), released + deadline) == [], "another cluster has a deadline of its own"
    running = {**job, "status": {"jobDeploymentStatus": "Running"}}
    assert steps(Holdings([running], gpus(2)), released + deadline) == []


def test_whose_runs_are_let_in() -> None:
    assert is_ours(suspended())
    foreign = suspended()
    foreign["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["metadata"]["labels"] = {}
    assert not is_ours(foreign)
    queued: Object = dict(render(order(on=pool({"gang": "kueue", "queue": "red"}))).documents[-1])
    assert not is_ours(queued)
    leaving = suspended()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T11:59:00Z"
    assert not is_ours(leaving)


def test_the_gang_is_head_workers_and_submitter() -> None:
    pods = {found.name: found.count for found in gang_of(suspended(accelerators=12)).pods}
    assert pods == {"headgroup": 1, "train": 1, "train-rest": 1, "submitter": 1}
