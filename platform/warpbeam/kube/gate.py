"""The doorkeeper of gangs on a cluster without a queue: which suspended runs may start now, and which must give back.

Pure: from what a cluster holds to the changes that are to be made. A run starts when all of its pods fit beside
everything that is there and everything that was promised before; first come, first served. What was let in and does not
run by its deadline is suspended again, which gives all of it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from warpbeam.kube import names
from warpbeam.kube.gang_fit import Decision, Gang, Pods, Room, decide, place, pods_of, rooms
from warpbeam.kube.observe import CLUSTER_LABEL
from warpbeam.kube.quantities import amount, in_words
from warpbeam.kube.why import QUEUE_LABEL, STATES
from warpbeam.record.states import RunState

Object = Mapping[str, Any]

GROUP_LABEL: Final = "ray.io/group"
HEAD_GROUP: Final = "headgroup"
"""KubeRay's name for the head's own."""
MARGIN_S: Final = 60.0
"""KubeRay ends a run at its deadline by itself; the gate only where that has not happened."""
_OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Holdings:
    """What was read of a cluster, everything of all namespaces."""

    jobs: Sequence[Object]
    nodes: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    quotas: Sequence[Object] = ()


@dataclass(frozen=True)
class Step:
    """One change of one RayJob, as a merge patch.

    Args:
        line: the same for a log.
    """

    namespace: str
    name: str
    change: Mapping[str, Any]
    line: str


def steps(there: Holdings, now: datetime) -> list[Step]:
    """What is to be done; nothing twice: the same holdings after these steps give none."""
    ours = [job for job in there.jobs if is_ours(job)]
    late = [job for job in ours if _is_late(job, now)]
    found = [_give_back(job, now) for job in late]
    waiting = {_key(job): job for job in sorted(filter(_waits, ours), key=_age)}
    if not waiting:
        return found
    blocked = _blocked_by_quota(waiting, there.quotas)
    free = _free(there, [job for job in ours if _is_let_in(job)])
    decisions = decide([gang_of(job) for key, job in waiting.items() if key not in blocked], free)
    decisions += [Decision(key, False, why) for key, why in blocked.items()]
    made = (_step(waiting[decision.gang], decision, now) for decision in decisions)
    return [*found, *(step for step in made if step is not None)]


def is_ours(job: Object) -> bool:
    """Rendered here, and held by nobody else. A RayCronJob's RayJobs have no labels, but their pods will."""
    spec = job.get("spec", {}).get("rayClusterSpec") or {}
    template = spec.get("headGroupSpec", {}).get("template", {})
    marked = names.RUN in template.get("metadata", {}).get("labels", {})
    metadata = job["metadata"]
    return marked and QUEUE_LABEL not in metadata.get("labels", {}) and "deletionTimestamp" not in metadata


def gang_of(job: Object) -> Gang:
    """All pods that must be there: the head, the workers that the run begins with, and the pod that sends it."""
    return Gang(_key(job), tuple(_pods(job)), created=job["metadata"].get("creationTimestamp", ""))


def _pods(job: Object) -> Iterator[Pods]:
    cluster = job["spec"]["rayClusterSpec"]
    yield pods_of(HEAD_GROUP, 1, cluster["headGroupSpec"]["template"]["spec"])
    for group in cluster.get("workerGroupSpecs", []):
        count = int(group.get("replicas", 0)) * int(group.get("numOfHosts", 1))
        if count:
            yield pods_of(group["groupName"], count, group["template"]["spec"])
    if template := job["spec"].get("submitterPodTemplate"):
        yield pods_of("submitter", 1, template["spec"])


def _age(job: Object) -> tuple[str, str]:
    return job["metadata"].get("creationTimestamp", ""), _key(job)


def _key(job: Object) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"


# ---- who is where


def _state(job: Object) -> RunState:
    return STATES.get(job.get("status", {}).get("jobDeploymentStatus", ""), RunState.WAITING)


def _annotations(job: Object) -> Mapping[str, str]:
    return job["metadata"].get("annotations") or {}


def _waits(job: Object) -> bool:
    """Also while the pods of an earlier try are going: they still hold their places, which are counted."""
    return bool(job["spec"].get("suspend")) and not _state(job).ended and names.GIVEN_BACK not in _annotations(job)


def _is_let_in(job: Object) -> bool:
    return not job["spec"].get("suspend") and not _state(job).ended


def _is_late(job: Object, now: datetime) -> bool:
    """Counted from when it was let in, and anew for each cluster that KubeRay makes."""
    deadline_s = job["spec"].get("preRunningDeadlineSeconds")
    if names.RELEASED not in _annotations(job) or not deadline_s or not _is_let_in(job):
        return False
    return _state(job) is not RunState.RUNNING and (now - _began(job)).total_seconds() > deadline_s + MARGIN_S


def _began(job: Object) -> datetime:
    """The newest beginning: KubeRay's own of this cluster, or the gate's word before that."""
    released = datetime.fromisoformat(_annotations(job)[names.RELEASED])
    started = job.get("status", {}).get("startTime")
    return max(released, datetime.fromisoformat(started)) if started else released


def _free(there: Holdings, let_in: Iterable[Object]) -> list[Room]:
    """What nodes have left when everything that was promised is in its place."""
    free = rooms(there.nodes, there.pods)
    for job in let_in:
        for missing in _missing(job, there.pods):
            one = Gang(_key(job), (Pods(missing.name, 1, missing.asked, missing.node_selector, missing.tolerations),))
            for _ in range(missing.count):
                free = place(one, free) or free
    return free


def _missing(job: Object, pods: Sequence[Object]) -> Iterator[Pods]:
    """Pods of a run that was let in which no node has yet."""
    status = job.get("status", {})
    cluster = status.get("rayClusterName", "")
    bound: dict[str, int] = {}
    for pod in pods:
        metadata = pod["metadata"]
        labels = metadata.get("labels", {})
        mine = metadata.get("namespace") == job["metadata"]["namespace"] and pod["spec"].get("nodeName")
        if not mine or pod.get("status", {}).get("phase") in _OVER:
            continue
        if cluster and labels.get(CLUSTER_LABEL) == cluster:
            group = labels.get(GROUP_LABEL, "")
            bound[group] = bound.get(group, 0) + 1
        elif labels.get("job-name") == job["metadata"]["name"]:
            bound["submitter"] = bound.get("submitter", 0) + 1
    for wanted in _pods(job):
        if wanted.name == "submitter" and _state(job) is RunState.RUNNING:
            continue  # it has sent the job; where it ended well it does not come back
        count = wanted.count - bound.get(wanted.name, 0)
        if count > 0:
            yield Pods(wanted.name, count, wanted.asked, wanted.node_selector, wanted.tolerations)


# ---- quotas


def _blocked_by_quota(waiting: Mapping[str, Object], quotas: Sequence[Object]) -> dict[str, str]:
    """Who cannot be whole in its namespace, and why. What one may take, the next of its namespace does not find."""
    blocked = {}
    for key, job in waiting.items():
        if why := _quota_shortage(job, quotas):
            blocked[key] = why
            continue
        used, namespace = _quota_wanted(job), job["metadata"]["namespace"]
        quotas = [_spent(quota, used) if quota["metadata"]["namespace"] == namespace else quota for quota in quotas]
    return blocked


def _quota_wanted(job: Object) -> dict[str, Decimal]:
    """By a ResourceQuota's own keys; requests are limits in all that is rendered."""
    total: dict[str, Decimal] = {}
    for pods in _pods(job):
        for name, each in pods.asked.items():
            keys = ("pods", "count/pods") if name == "pods" else (name, f"requests.{name}", f"limits.{name}")
            for key in keys:
                total[key] = total.get(key, Decimal(0)) + each * pods.count
    return total


def _quota_shortage(job: Object, quotas: Iterable[Object]) -> str:
    """Why the namespace could not hold the whole run; empty where it can."""
    wanted = _quota_wanted(job)
    for quota in quotas:
        if quota["metadata"]["namespace"] != job["metadata"]["namespace"]:
            continue
        status = quota.get("status", {})
        for key, hard in status.get("hard", {}).items():
            left = amount(hard) - amount(status.get("used", {}).get(key, "0"))
            if wanted.get(key, Decimal(0)) > left:
                name = key.partition(".")[2] or key
                short = in_words(name, wanted[key] - left)
                return f"the namespace's quota {quota['metadata']['name']} is short by {short}"
    return ""


def _spent(quota: Object, used: Mapping[str, Decimal]) -> Object:
    status = quota.get("status", {})
    now = {key: str(amount(value) + used.get(key, Decimal(0))) for key, value in status.get("used", {}).items()}
    return {**quota, "status": {**status, "used": now}}


# ---- what is done


def _step(job: Object, decision: Decision, now: datetime) -> Step | None:
    metadata = job["metadata"]
    where = (metadata["namespace"], metadata["name"])
    version = {"resourceVersion": metadata["resourceVersion"]}  # whoever else has changed it meanwhile is heard first
    if decision.enters:
        marks = {names.RELEASED: _written(now), names.GATE: None}
        change = {"metadata": {**version, "annotations": marks}, "spec": {"suspend": False}}
        return Step(*where, change, f"{decision.gang}: let in, all of it fits")
    if _annotations(job).get(names.GATE) == decision.why:
        return None
    return Step(
        *where, {"metadata": {**version, "annotations": {names.GATE: decision.why}}}, f"{decision.gang}: {decision.why}"
    )


def _give_back(job: Object, now: datetime) -> Step:
    metadata = job["metadata"]
    why = f"begun at {_written(_began(job))}, it did not run by its deadline: everything is given back"
    marks = {names.GATE: why, names.GIVEN_BACK: _written(now)}
    change = {
        "metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": marks},
        "spec": {"suspend": True},
    }
    return Step(metadata["namespace"], metadata["name"], change, f"{_key(job)}: {why}")


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
