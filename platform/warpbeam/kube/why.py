"""What a cluster's objects say about a run: its state, and one sentence why it is not running.

A table from KubeRay's words to ours, then rules that each look for one cause, the most certain first. All input is
plain JSON as the API server gives it, so that what was seen once can be a test for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warpbeam.errors import Owner
from warpbeam.kube import names
from warpbeam.kube.gang_fit import Gang, Room, pods_of, shortage
from warpbeam.kube.pods import BUNDLE_FETCHER
from warpbeam.record.states import RunState

Object = Mapping[str, Any]

STATES: Final[Mapping[str, RunState]] = {
    "": RunState.WAITING,
    "Initializing": RunState.STARTING,
    "Waiting": RunState.STARTING,
    "Running": RunState.RUNNING,
    "Retrying": RunState.STARTING,
    "Suspending": RunState.WAITING,
    "Suspended": RunState.WAITING,
    "Complete": RunState.DONE,
    "Failed": RunState.FAILED,
    "ValidationFailed": RunState.FAILED,
}
"""KubeRay's jobDeploymentStatus -> a run's state."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_PULL: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_PULL_STEPS: Final = re.compile(
    r'(?i)(failed to pull image|failed to pull and unpack image|failed to resolve reference) "[^"]*": |rpc error: '
)
"""What kubelet and containerd put before the registry's answer, the whole reference in each."""
_AFTERTHOUGHTS: Final = re.compile(r" (no new claims to deallocate|preemption:)")
"""Where the scheduler goes on to what would not have helped either."""
_IDENTIFIERS: Final = re.compile(r" \(UID: [^)]*\)|; preemptor path: .*")
"""Of Kueue's words, what no person can use."""
_REFUSALS: Final = ("FailedToCreateHeadPod", "FailedToCreateWorkerPod", "FailedCreate", "FailedToCreateRayCluster")


@dataclass(frozen=True)
class Seen:
    """What was read of one run. Everything but the RayJob may be missing.

    Args:
        workload: Kueue's, where there is one.
        rooms: nodes with what is free on them, for whoever may read nodes; the sentence then counts what is short.
    """

    ray_job: Object
    ray_cluster: Object | None = None
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    workload: Object | None = None
    rooms: Sequence[Room] = ()


@dataclass(frozen=True)
class Verdict:
    """A run's state in a cluster.

    Args:
        reason: a stable code, for scripts; empty where nothing is wrong.
        sentence: why it is not running, or what is wrong although it is.
        owner: who can mend it.
    """

    state: RunState
    reason: str = ""
    sentence: str = ""
    owner: Owner = "unknown"


@dataclass(frozen=True)
class Cause:
    """What a rule found."""

    reason: str
    sentence: str
    owner: Owner = "platform"


Rule = Callable[[Seen], Iterator[Cause]]


def verdict(seen: Seen) -> Verdict:
    """State and sentence; the first cause that a rule finds is the one that is told."""
    status = seen.ray_job.get("status", {})
    said = status.get("jobDeploymentStatus", "")
    state = STATES.get(said, RunState.WAITING)
    annotations = seen.ray_job["metadata"].get("annotations") or {}
    if names.GIVEN_BACK in annotations:
        return Verdict(RunState.FAILED, "deadline", annotations.get(names.GATE, ""), "platform")
    if status.get("jobStatus") == "STOPPED" and state is RunState.DONE:
        return Verdict(RunState.STOPPED, "stopped", "it was asked to stop", "ml")
    if state is RunState.DONE:
        return Verdict(state)
    if said not in STATES:
        return Verdict(state, "unknown_status", f"KubeRay says {said}, which this version does not know", "platform")
    causes = (cause for rule in (_FAILED if state is RunState.FAILED else _WAITING) for cause in rule(seen))
    found = next(causes, None)
    if found is None:
        return Verdict(state) if state is RunState.RUNNING else Verdict(state, "", _progress(seen, said))
    return Verdict(state, found.reason, found.sentence, found.owner)


# ---- rules: what has failed for good


def _ended(seen: Seen) -> Iterator[Cause]:
    """KubeRay's own word on a RayJob that has failed, with the pods' where they say why."""
    status = seen.ray_job["status"]
    reason, message = status.get("reason", ""), " ".join(status.get("message", "").split())
    if status["jobDeploymentStatus"] == "ValidationFailed":
        yield Cause("validation_failed", f"KubeRay does not take the RayJob: {message}")
    elif reason in ("DeadlineExceeded", "PreRunningDeadlineExceeded"):
        below = next((cause for rule in _WAITING for cause in rule(seen)), None)
        why = f": {below.sentence}" if below else ""
        what = "it was not running by its deadline" if reason.startswith("Pre") else "it has run into its deadline"
        yield Cause("deadline", f"{what}{why}", below.owner if below else "platform")
    elif reason == "SubmissionFailed":
        below = next((cause for rule in (_not_sent, _died) for cause in rule(seen)), None)
        yield below or Cause("head_lost", "the head has gone, or the job could not be sent to it", "infra")
    else:
        told = message.partition(", last available logs")[0]  # Ray adds up to 20,000 characters of the log
        yield Cause("job_failed", told or "the program has failed", "ml")


# ---- rules: why a run is not running


def _not_let_in(seen: Seen) -> Iterator[Cause]:
    """Kueue's or the gate's word; there are no pods to ask."""
    if not seen.ray_job.get("spec", {}).get("suspend"):
        return
    queue = seen.ray_job["metadata"].get("labels", {}).get(QUEUE_LABEL)
    if queue is None:
        short = _gang_shortage(seen) or seen.ray_job["metadata"].get("annotations", {}).get(names.GATE, "")
        yield Cause("gang_waits", f"it waits until all of it fits{f': {short}' if short else ''}")
        return
    if seen.workload is None:
        yield Cause(
            "queue", f"queue {queue} has not looked at it yet: is there a LocalQueue of this name in the namespace?"
        )
        return
    conditions = {found["type"]: found for found in seen.workload.get("status", {}).get("conditions", [])}
    evicted, reserved = conditions.get("Evicted"), conditions.get("QuotaReserved")
    if evicted and evicted["status"] == "True":
        yield Cause("preempted", f"queue {queue} has taken its place back: {_IDENTIFIERS.sub('', evicted['message'])}")
    elif reserved and reserved["status"] != "True":
        yield Cause("queue", f"queue {queue}: {reserved['message']}")
    else:
        yield Cause("queue", f"it waits in queue {queue}")


def _refused(seen: Seen) -> Iterator[Cause]:
    """Pods that the API server did not let KubeRay make, and that are still not there: events outlive their cause."""
    if len(seen.pods) >= _expected_pods(seen):
        return
    for event in _newest_first(seen.events):
        message = " ".join(event.get("message", "").split())
        if event.get("reason") not in _REFUSALS or message.endswith("already exists"):  # KubeRay's cache was behind
            continue
        if found := re.search(r'serviceaccount "([^"]+)" not found', message):
            yield Cause("service_account", f"there is no service account {found[1]} in the namespace")
        elif found := re.search(r"exceeded quota: (\S+), requested: (.+?), used: (.+?), limited: (.+)$", message):
            asked, used, limit = found[2], found[3], found[4]
            yield Cause("quota", f"the namespace's quota {found[1]} is spent: {asked} more on {used} of {limit}")
        elif "violates PodSecurity" in message:
            yield Cause(
                "pod_security", f"the namespace's Pod Security refuses the pod: {message.partition('violates ')[2]}"
            )
        elif "denied request" in message:
            yield Cause("policy", f"a policy of the namespace refuses it: {message.partition('denied request: ')[2]}")
        else:
            yield Cause("not_created", f"a pod could not be made: {message}")


def _images(seen: Seen) -> Iterator[Cause]:
    for pod, status in _containers(seen.pods):
        waiting = status.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _PULL:
            why = _pull_message(pod, waiting, seen.events)
            yield Cause("image", f"{_where(pod)} cannot pull {status['image']}: {why}")


def _missing_objects(seen: Seen) -> Iterator[Cause]:
    """Secrets and ConfigMaps that pods name and the namespace lacks."""
    for pod, status in _containers(seen.pods):
        waiting = status.get("state", {}).get("waiting", {})
        if waiting.get("reason") == "CreateContainerConfigError":
            yield Cause("missing_object", f"{_where(pod)} lacks what its manifest names: {waiting['message']}")
    names = {pod["metadata"]["name"]: pod for pod in seen.pods}
    for event in _newest_first(seen.events):
        pod_name = event.get("involvedObject", {}).get("name")
        if event.get("reason") == "FailedMount" and pod_name in names and _is_pending(names[pod_name]):
            found = re.search(r'(secret|configmap) "[^"]+" not found', event["message"])
            if found:
                yield Cause("missing_object", f"{_where(names[pod_name])} lacks what its manifest names: {found[0]}")


def _not_sent(seen: Seen) -> Iterator[Cause]:
    """The submitter could not fetch the job's folder; its words are the program's own."""
    for pod, status in _containers(seen.pods):
        ended = status.get("state", {}).get("terminated", {})
        if status["name"] == BUNDLE_FETCHER and ended.get("exitCode", 0) != 0:
            said = ended.get("message", "").strip().splitlines() or [f"exit {ended['exitCode']}"]
            yield Cause("bundle", f"{_where(pod)} cannot fetch the job's folder: {said[0]}")


def _died(seen: Seen) -> Iterator[Cause]:
    """Containers that have ended, now or before they were started again."""
    for pod, status in _containers(seen.pods):
        for state in (status.get("state", {}), status.get("lastState", {})):
            ended = state.get("terminated", {})
            if ended.get("reason") == "OOMKilled":
                limit = _memory_limit(pod, status["name"])
                yield Cause("out_of_memory", f"{_where(pod)} was ended for using more than its {limit} of memory", "ml")
    for pod, status in _containers(seen.pods):
        if status.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff":
            code = status.get("lastState", {}).get("terminated", {}).get("exitCode", "?")
            log = f"kubectl logs {pod['metadata']['name']} -c {status['name']} --previous"
            yield Cause("crashes", f"{_where(pod)} ends as soon as it starts (exit {code}): {log}")


def _unplaced(seen: Seen) -> Iterator[Cause]:
    """Pods that no node takes: counted where nodes could be read, else in the scheduler's words."""
    waiting = [pod for pod in seen.pods if _unscheduled(pod) is not None]
    if not waiting:
        return
    pod = waiting[0]
    more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    name = pod["metadata"]["name"]
    if seen.rooms:
        gang = Gang(name, (pods_of(pod["metadata"].get("labels", {}).get("ray.io/group", "its"), 1, pod["spec"]),))
        if short := shortage(gang, seen.rooms):
            yield Cause("unschedulable", f"pod {name}{more} has no place: {short.partition('no place: ')[2]}")
            return
    said = _AFTERTHOUGHTS.split(_unscheduled(pod) or "")[0]
    yield Cause("unschedulable", f"pod {name}{more} has no place: {said.rstrip('. ')}")


def _lost(seen: Seen) -> Iterator[Cause]:
    """Pods on nodes that have gone, and pods that were taken away."""
    for pod in seen.pods:
        for condition in pod.get("status", {}).get("conditions", []):
            if condition["type"] != "DisruptionTarget" or condition["status"] != "True":
                continue
            if condition.get("reason") == "DeletionByTaintManager":
                yield Cause("node_lost", f"{_where(pod)} is given up: the node does not answer", "infra")
            else:
                yield Cause("evicted", f"{_where(pod)} was taken away: {condition.get('message', '')}", "infra")


_WAITING: Final[tuple[Rule, ...]] = (
    _not_let_in,
    _refused,
    _images,
    _missing_objects,
    _not_sent,
    _died,
    _unplaced,
    _lost,
)
_FAILED: Final[tuple[Rule, ...]] = (_ended,)


def _progress(seen: Seen, said: str) -> str:
    """Nothing is wrong: how far it has come."""
    if said == "Retrying":
        return "the last attempt's cluster is taken down; another follows"
    total = len(seen.pods)
    if not total:
        return "its cluster is being made"
    ready = sum(_is_ready(pod) for pod in seen.pods)
    slow = next((pod for pod in seen.pods if not _is_ready(pod)), None)
    doing = f"; {_where(slow)} {_doing(slow, seen.events)}" if slow is not None else ""
    return f"{ready} of {total} pods are ready{doing}"


def _doing(pod: Object, events: Sequence[Object]) -> str:
    own = [
        event
        for event in _newest_first(events)
        if event.get("involvedObject", {}).get("name") == pod["metadata"]["name"]
    ]
    if own and own[0].get("reason") == "Pulling":
        return "pulls its image"
    for status in pod.get("status", {}).get("initContainerStatuses", []):
        if status["name"] == "wait-gcs-ready" and "running" in status.get("state", {}):
            return "waits for the head"
    return "starts"


# ---- reading objects


def _expected_pods(seen: Seen) -> int:
    """Head and workers that the cluster wants now; the autoscaler changes the RayCluster, not the RayJob."""
    cluster = (seen.ray_cluster or {}).get("spec") or seen.ray_job.get("spec", {}).get("rayClusterSpec", {})
    groups = cluster.get("workerGroupSpecs", [])
    return 1 + sum(int(group.get("replicas", 0)) * int(group.get("numOfHosts", 1)) for group in groups)


def _containers(pods: Sequence[Object]) -> Iterator[tuple[Object, Object]]:
    for pod in pods:
        status = pod.get("status", {})
        for found in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
            yield pod, found


def _where(pod: Object) -> str:
    node = pod.get("spec", {}).get("nodeName")
    return f"pod {pod['metadata']['name']}" + (f" on node {node}" if node else "")


def _unscheduled(pod: Object) -> str | None:
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason", ""))
    return None


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


def _is_pending(pod: Object) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Pending")


def _pull_message(pod: Object, waiting: Object, events: Sequence[Object]) -> str:
    """The registry's answer: while it backs off a pod only repeats that it does."""
    messages = [
        event["message"]
        for event in _newest_first(events)
        if event.get("reason") == "Failed" and event.get("involvedObject", {}).get("name") == pod["metadata"]["name"]
    ]
    told = next(
        (message for message in messages if message.startswith("Failed to pull image")), waiting.get("message", "")
    )
    return " ".join(_PULL_STEPS.sub("", told).split()) or str(waiting["reason"])


def _memory_limit(pod: Object, container: str) -> str:
    for found in pod["spec"]["containers"]:
        if found["name"] == container:
            return str(found.get("resources", {}).get("limits", {}).get("memory", "share"))
    return "share"


def _gang_shortage(seen: Seen) -> str:
    cluster = seen.ray_job.get("spec", {}).get("rayClusterSpec")
    if not seen.rooms or not cluster:
        return ""
    parts = [pods_of("head", 1, cluster["headGroupSpec"]["template"]["spec"])]
    for group in cluster["workerGroupSpecs"]:
        count = group["replicas"] * group.get("numOfHosts", 1)
        parts.append(pods_of(group["groupName"], count, group["template"]["spec"]))
    return shortage(Gang(seen.ray_job["metadata"]["name"], tuple(parts)), seen.rooms)


def _newest_first(events: Sequence[Object]) -> list[Object]:
    return sorted(
        events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), reverse=True
    )
