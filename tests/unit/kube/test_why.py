"""One sentence for every way in which a run does not run.

The refusals (service account, quota, Pod Security, policy, validation) are words of KubeRay 1.6.2 and an API server
1.36.3, recorded; the rest is written after the formats in the sources of KubeRay, Kueue 0.17 and Kubernetes.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kube.orders import order, pool
from tests.unit.kube.test_gang_fit import node
from tests.unit.kube.test_gang_fit import pod as bound
from warpbeam.kube.gang_fit import rooms
from warpbeam.kube.render import render
from warpbeam.kube.why import STATES, Seen, verdict
from warpbeam.record.states import RunState

Object = dict[str, Any]
IMAGE = "registry.test/train@sha256:1"


def ray_job(
    deployment: str = "Initializing", *, queue: str | None = None, suspend: bool = False, **status: Any
) -> Object:
    kubernetes: Object = {"gang": "kueue", "queue": queue} if queue else {}
    job: Object = render(order(on=pool(kubernetes))).documents[-1]
    spec = job["spec"] | {"suspend": suspend}
    return job | {"spec": spec, "status": {"jobDeploymentStatus": deployment, **status}}


def pod(
    name: str = "tiny-abc-train-worker-1", *, on: str | None = "gpu-3", phase: str = "Pending", **status: Any
) -> Object:
    limits = {"cpu": "96", "memory": "960Gi", "nvidia.com/gpu": "8"}
    container = {"name": "ray-worker", "resources": {"limits": limits, "requests": limits}}
    spec: Object = {"containers": [container]} | ({"nodeName": on} if on else {})
    metadata = {"name": name, "labels": {"ray.io/group": "train"}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}


def container(state: Object, last: Object | None = None) -> list[Object]:
    return [{"name": "ray-worker", "image": IMAGE, "state": state, "lastState": last or {}}]


def event(
    reason: str, message: str, about: str = "tiny-abc-train-worker-1", at: str = "2026-01-01T00:00:00Z"
) -> Object:
    return {"reason": reason, "message": message, "involvedObject": {"name": about}, "lastTimestamp": at}


def unscheduled(message: str) -> Object:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}


def workload(*conditions: tuple[str, str, str]) -> Object:
    return {"status": {"conditions": [{"type": t, "status": s, "message": m} for t, s, m in conditions]}}


READY = {"conditions": [{"type": "Ready", "status": "True"}]}
TAINTS = (
    "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint(s). preemption: 0/5 nodes"
)
CLAIMS = (
    "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. no new claims to deallocate, "
    "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
)
MADE = "Failed to create worker Pod for the cluster team-support/tiny-abc, pods"
NO_ACCOUNT = (
    f'{MADE} "tiny-abc-train-worker-" is forbidden: error looking up service account team-support/nobody: '
    'serviceaccount "nobody" not found'
)
NO_QUOTA = (
    f'{MADE} "tiny-abc-train-worker-cdqv5" is forbidden: exceeded quota: warpbeam, requested: '
    "requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=4"
)
NO_SECURITY = (
    f'{MADE} "tiny-abc-train-worker-r7jjk" is forbidden: violates PodSecurity "restricted:latest": '
    'allowPrivilegeEscalation != false (containers "wait-gcs-ready", "ray-worker" must set '
    "securityContext.allowPrivilegeEscalation=false)"
)
NO_POLICY = (
    f"{MADE} \"tiny-abc-train-worker-k9z2q\" is forbidden: ValidatingAdmissionPolicy 'warpbeam-team-support-pods' with "
    "binding 'warpbeam-team-support-pods' denied request: only the pool's image may run here: registry.test/train"
)
TOO_LONG = "The RayJob metadata is invalid: RayJob name should be no more than 47 characters"
EXISTS = 'Failed to create RayCluster team-support/tiny-abc: rayclusters.ray.io "tiny-abc" already exists'
NOT_FOUND = f'Failed to pull image "{IMAGE}": rpc error: code = NotFound desc = failed to resolve reference: not found'
PULLED = "".join(f'{step} "{IMAGE}": ' for step in ("Failed to pull image", "failed to pull and unpack image"))
PULLED += f'failed to resolve reference "{IMAGE}": '
NO_REGISTRY = 'failed to do request: Head "https://registry.test/v2/": dial tcp: lookup registry.test: no such host'
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
NO_SECRET = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}
NOT_FETCHED = container(
    {
        "terminated": {
            "exitCode": 1,
            "reason": "Error",
            "message": "the store cannot be reached at http://s3:9\nwhy: x\n",
        }
    }
)
NOT_FETCHED[0]["name"] = "bundle"
KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
SHORT = "couldn't assign flavors to pod set train: insufficient unused quota for nvidia.com/gpu, 16 more needed"
EVICTED = (
    "Evicted",
    "True",
    "Preempted to accommodate a workload (UID: 8bf3c99b, JobUID: 969866ac) due to prioritization in the ClusterQueue; "
    "preemptor path: /training; preemptee path: /training",
)
GONE = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "Taint manager"}]
DRAINED = [
    {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
]

CASES: dict[str, tuple[Seen, str, str]] = {
    "image": (
        Seen(ray_job(), pods=[pod(containerStatuses=container(BACK_OFF))], events=[event("Failed", NOT_FOUND)]),
        "image",
        f"pod tiny-abc-train-worker-1 on node gpu-3 cannot pull {IMAGE}: code = NotFound desc = failed to resolve",
    ),
    "image, by containerd 1.6 under kubelet 1.36": (
        Seen(
            ray_job(), pods=[pod(containerStatuses=container(BACK_OFF))], events=[event("Failed", PULLED + NO_REGISTRY)]
        ),
        "image",
        f"pod tiny-abc-train-worker-1 on node gpu-3 cannot pull {IMAGE}: {NO_REGISTRY}",
    ),
    "image, no event left": (
        Seen(ray_job(), pods=[pod(containerStatuses=container(BACK_OFF))]),
        "image",
        f"cannot pull {IMAGE}: Back-off pulling image",
    ),
    "gpu, by the scheduler": (
        Seen(ray_job(), pods=[pod(on=None, **unscheduled(TAINTS)), pod("b", on=None, **unscheduled(TAINTS))]),
        "unschedulable",
        "(and 1 more) has no place: 0/5 nodes are available: 2 Insufficient nvidia.com/gpu, "
        "3 node(s) had untolerated taint(s)",
    ),
    "gpu, by the scheduler of 1.36": (
        Seen(ray_job(), pods=[pod(on=None, **unscheduled(CLAIMS))]),
        "unschedulable",
        "pod tiny-abc-train-worker-1 has no place: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu",
    ),
    "gpu, counted": (
        Seen(
            ray_job(),
            pods=[pod(on=None, **unscheduled(TAINTS))],
            rooms=rooms([node("gpu-1"), node("gpu-2")], [bound("gpu-1", 6), bound("gpu-2", 8)]),
        ),
        "unschedulable",
        "each needs 8 nvidia.com/gpu, the most that is free is 2 on gpu-1, 6 nvidia.com/gpu short",
    ),
    "service account": (
        Seen(
            ray_job(),
            events=[
                event("FailedToCreateWorkerPod", NO_ACCOUNT),
                event("FailedToCreateRayCluster", EXISTS, at="2026-01-01T00:00:09Z"),
            ],
        ),
        "service_account",
        "there is no service account nobody in the namespace",
    ),
    "quota": (
        Seen(ray_job(), pods=[pod("head", phase="Running")], events=[event("FailedToCreateWorkerPod", NO_QUOTA)]),
        "quota",
        "quota warpbeam is spent: requests.nvidia.com/gpu=8 more on requests.nvidia.com/gpu=0 of requests",
    ),
    "pod security": (
        Seen(ray_job(), events=[event("FailedToCreateWorkerPod", NO_SECURITY)]),
        "pod_security",
        'Pod Security refuses the pod: PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
    ),
    "policy": (
        Seen(ray_job(), events=[event("FailedToCreateWorkerPod", NO_POLICY)]),
        "policy",
        "a policy of the namespace refuses it: only the pool's image",
    ),
    "secret": (
        Seen(ray_job(), pods=[pod(containerStatuses=container(NO_SECRET))]),
        "missing_object",
        'pod tiny-abc-train-worker-1 on node gpu-3 lacks what its manifest names: secret "hf" not found',
    ),
    "config map": (
        Seen(
            ray_job(),
            pods=[pod()],
            events=[
                event(
                    "FailedMount",
                    'MountVolume.SetUp failed for volume "pool" : configmap "warpbeam-pool-gpus" not found',
                )
            ],
        ),
        "missing_object",
        'lacks what its manifest names: configmap "warpbeam-pool-gpus" not found',
    ),
    "no bundle": (
        Seen(ray_job("Failed", reason="SubmissionFailed"), pods=[pod("tiny-8s8fg", initContainerStatuses=NOT_FETCHED)]),
        "bundle",
        "pod tiny-8s8fg on node gpu-3 cannot fetch the job's folder: the store cannot be reached at http://s3:9",
    ),
    "out of memory": (
        Seen(ray_job("Running"), pods=[pod(phase="Running", containerStatuses=container({"running": {}}, KILLED))]),
        "out_of_memory",
        "pod tiny-abc-train-worker-1 on node gpu-3 was ended for using more than its 960Gi of memory",
    ),
    "crash loop": (
        Seen(
            ray_job(),
            pods=[
                pod(
                    containerStatuses=container(
                        {"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": {"exitCode": 2}}
                    )
                )
            ],
        ),
        "crashes",
        "ends as soon as it starts (exit 2): kubectl logs tiny-abc-train-worker-1 -c ray-worker --previous",
    ),
    "kueue waits": (
        Seen(ray_job("Suspended", queue="q", suspend=True), workload=workload(("QuotaReserved", "False", SHORT))),
        "queue",
        "queue q: couldn't assign flavors to pod set train: insufficient unused quota for nvidia.com/gpu",
    ),
    "kueue has preempted": (
        Seen(
            ray_job("Suspended", queue="q", suspend=True), workload=workload(EVICTED, ("QuotaReserved", "False", "x"))
        ),
        "preempted",
        "has taken its place back: Preempted to accommodate a workload due to prioritization in the ClusterQueue",
    ),
    "no such queue": (
        Seen(ray_job("Suspended", queue="q", suspend=True)),
        "queue",
        "queue q has not looked at it yet: is there a LocalQueue of this name",
    ),
    "the gate waits": (Seen(ray_job("Suspended", suspend=True)), "gang_waits", "it waits until all of it fits"),
    "node lost": (
        Seen(ray_job("Running"), pods=[pod(phase="Running", conditions=GONE)]),
        "node_lost",
        "pod tiny-abc-train-worker-1 on node gpu-3 is given up: the node does not answer",
    ),
    "node drained": (
        Seen(ray_job("Running"), pods=[pod(phase="Running", conditions=DRAINED)]),
        "evicted",
        "was taken away: Eviction API: evicting",
    ),
    "refused by the operator": (
        Seen(ray_job("ValidationFailed", reason="ValidationFailed", message=TOO_LONG)),
        "validation_failed",
        f"KubeRay does not take the RayJob: {TOO_LONG}",
    ),
    "deadline with its cause": (
        Seen(ray_job("Failed", reason="PreRunningDeadlineExceeded"), pods=[pod(containerStatuses=container(BACK_OFF))]),
        "deadline",
        f"it was not running by its deadline: pod tiny-abc-train-worker-1 on node gpu-3 cannot pull {IMAGE}",
    ),
    "head lost": (
        Seen(ray_job("Failed", reason="SubmissionFailed", message="Job submission has failed.")),
        "head_lost",
        "the head has gone, or the job could not be sent to it",
    ),
    "program failed": (
        Seen(
            ray_job(
                "Failed",
                reason="AppFailed",
                jobStatus="FAILED",
                message="Job entrypoint command failed with exit code 1",
            )
        ),
        "job_failed",
        "Job entrypoint command failed with exit code 1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_cause_has_its_sentence(name: str) -> None:
    seen, reason, sentence = CASES[name]
    found = verdict(seen)
    assert found.reason == reason, found
    assert sentence in found.sentence
    assert "\n" not in found.sentence
    assert not [noise for noise in ("claims", "UID", "path:") if noise in found.sentence]
    assert found.sentence.count(IMAGE) <= 1
    assert found.state is STATES[seen.ray_job["status"]["jobDeploymentStatus"]]


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("", RunState.WAITING),
        ("Initializing", RunState.STARTING),
        ("Retrying", RunState.STARTING),
        ("Running", RunState.RUNNING),
        ("Complete", RunState.DONE),
        ("Suspended", RunState.WAITING),
    ],
)
def test_kuberays_words_for_a_state(said: str, state: RunState) -> None:
    assert verdict(Seen(ray_job(said))).state is state


def test_all_of_kuberays_words_are_known() -> None:
    """apis/ray/v1/rayjob_types.go of 1.6.2."""
    words = "Initializing Running Complete Failed ValidationFailed Suspending Suspended Retrying Waiting"
    assert set(STATES) == {"", *words.split()}
    assert verdict(Seen(ray_job("Dreaming"))).reason == "unknown_status"


def test_a_stopped_job_is_not_a_finished_one() -> None:
    assert verdict(Seen(ray_job("Complete", jobStatus="STOPPED"))).state is RunState.STOPPED
    assert verdict(Seen(ray_job("Complete", jobStatus="SUCCEEDED"))).state is RunState.DONE


def test_how_far_it_has_come() -> None:
    init = [{"name": "wait-gcs-ready", "image": IMAGE, "state": {"running": {}}}]
    pods = [pod("head", phase="Running", **READY), pod("w1", initContainerStatuses=init), pod("w2")]
    assert (
        verdict(Seen(ray_job(), pods=pods)).sentence == "1 of 3 pods are ready; pod w1 on node gpu-3 waits for the head"
    )
    pulling = verdict(Seen(ray_job(), pods=pods[2:], events=[event("Pulling", "Pulling image", about="w2")]))
    assert pulling.sentence == "0 of 1 pods are ready; pod w2 on node gpu-3 pulls its image"
    assert verdict(Seen(ray_job())).sentence == "its cluster is being made"


def test_an_old_refusal_is_no_reason_any_more() -> None:
    pods = [pod(name, phase="Running", **READY) for name in ("head", "w1", "w2")]
    assert verdict(Seen(ray_job(), pods=pods, events=[event("FailedToCreateWorkerPod", NO_QUOTA)])).reason == ""


def test_the_gates_sentence_counts_where_nodes_can_be_read() -> None:
    there = rooms([node("a", labels={"gpu": "h100"})], [bound("a", 6)])
    found = verdict(Seen(ray_job("Suspended", suspend=True), rooms=there))
    assert found.sentence.startswith("it waits until all of it fits: 2 of 2 train pods have no place")
