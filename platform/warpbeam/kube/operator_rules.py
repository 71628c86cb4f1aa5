"""What KubeRay 1.6.2 and Kueue 0.17 refuse although their schemas allow it, told before anything is sent.

KubeRay finds these mistakes only when it reconciles: the object is there, says ValidationFailed and waits. Each rule is
a function from a manifest to the mistakes in it; the same rules look at what people wrote by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from warpbeam.errors import PlatformError
from warpbeam.kube.names import MOST_CHARACTERS, MOST_IN_CRON_JOB
from warpbeam.pool_kubernetes_checks import KUEUE_POD_SETS, label_value
from warpbeam.spec_problems import KeyPath, Problem

Manifest = Mapping[str, Any]
Rule = Callable[[Manifest], Iterator[Problem]]

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
ELASTIC: Final = "kueue.x-k8s.io/elastic-job"
RAY_KINDS: Final = ("RayCluster", "RayJob", "RayService", "RayCronJob")


def check(documents: Iterable[Manifest]) -> None:
    """Raise PlatformError for the first document that the operator would not take."""
    for document in documents:
        if found := problems(document):
            name = f"{document['kind']} {document['metadata']['name']}"
            raise PlatformError(
                f"{name} would not be accepted: {found[0]}",
                why="\n".join(map(str, found[1:])),
                fix="mend the pool's `kubernetes:` section, or ask for less in the job",
                reason="bad_manifest",
            )


def problems(document: Manifest) -> list[Problem]:
    """All mistakes of one manifest; none of a kind that is not KubeRay's."""
    if document.get("kind") not in RAY_KINDS:
        return []
    return [problem for rule in RULES for problem in rule(document)]


def cluster_of(document: Manifest) -> tuple[KeyPath, Manifest]:
    """(path, content) of the RayCluster's spec inside any of KubeRay's kinds; empty where there is none."""
    spec = document.get("spec", {})
    match document.get("kind"):
        case "RayCluster":
            return ("spec",), spec
        case "RayJob":
            return ("spec", "rayClusterSpec"), spec.get("rayClusterSpec", {})
        case "RayService":
            return ("spec", "rayClusterConfig"), spec.get("rayClusterConfig", {})
        case "RayCronJob":
            return ("spec", "jobTemplate", "rayClusterSpec"), spec.get("jobTemplate", {}).get("rayClusterSpec", {})
    return (), {}


def _job_of(document: Manifest) -> tuple[KeyPath, Manifest]:
    spec = document.get("spec", {})
    if document["kind"] == "RayCronJob":
        return ("spec", "jobTemplate"), spec.get("jobTemplate", {})
    return (("spec",), spec) if document["kind"] == "RayJob" else ((), {})


def _names(document: Manifest) -> Iterator[Problem]:
    name = document["metadata"]["name"]
    most = MOST_IN_CRON_JOB if document["kind"] == "RayCronJob" else MOST_CHARACTERS
    if len(name) > most:
        yield Problem(("metadata", "name"), f"has {len(name)} characters", f"use at most {most}")
    if not name[:1].isalpha():
        yield Problem(("metadata", "name"), "must begin with a letter")
    for key, value in document["metadata"].get("labels", {}).items():
        try:
            label_value(value)
        except ValueError:
            yield Problem(("metadata", "labels", key), f"is no label's value: {value}")


def _ends(document: Manifest) -> Iterator[Problem]:
    """How a job is suspended, ended and cleaned up."""
    at, job = _job_of(document)
    shuts_down = job.get("shutdownAfterJobFinishes", False)
    if job.get("suspend") and not shuts_down:
        yield Problem((*at, "suspend"), "needs shutdownAfterJobFinishes: true")
    if job.get("ttlSecondsAfterFinished", 0) > 0 and not shuts_down:
        yield Problem((*at, "ttlSecondsAfterFinished"), "needs shutdownAfterJobFinishes: true")
    strategy = job.get("deletionStrategy", {})
    if strategy.get("deletionRules") and shuts_down:
        yield Problem((*at, "deletionStrategy", "deletionRules"), "do not go with shutdownAfterJobFinishes: true")
    if job.get("suspend") and job.get("clusterSelector"):
        yield Problem((*at, "clusterSelector"), "does not go with suspend: true")
    if job.get("clusterSelector") and job.get("backoffLimit", 0) > 0:
        yield Problem((*at, "clusterSelector"), "does not go with a backoffLimit")
    for key in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if key in job and job[key] <= 0:
            yield Problem((*at, key), "must be more than 0")


def _submission(document: Manifest) -> Iterator[Problem]:
    at, job = _job_of(document)
    if job.get("submissionMode") != "SidecarMode":
        return
    for key in ("submitterPodTemplate", "submitterConfig", "clusterSelector"):
        if job.get(key):
            yield Problem((*at, key), "is not taken in SidecarMode")


def _groups(document: Manifest) -> Iterator[Problem]:
    at, cluster = cluster_of(document)
    scales = cluster.get("enableInTreeAutoscaling", False)
    seen: set[str] = set()
    for i, group in enumerate(cluster.get("workerGroupSpecs", [])):
        where: KeyPath = (*at, "workerGroupSpecs", i)
        least, most = group.get("minReplicas"), group.get("maxReplicas")
        if group["groupName"] in seen:
            yield Problem((*where, "groupName"), f"stands there twice: {group['groupName']}")
        seen.add(group["groupName"])
        if (least is None or most is None) and not scales:
            yield Problem(where, "needs minReplicas and maxReplicas where nothing scales it")
        elif least is not None and most is not None and least > most:
            yield Problem((*where, "minReplicas"), f"is {least}, more than maxReplicas ({most})")
        if "idleTimeoutSeconds" in group and cluster.get("autoscalerOptions", {}).get("version") != "v2":
            yield Problem((*where, "idleTimeoutSeconds"), "needs the autoscaler's version v2")
        if scales and group.get("suspend"):
            yield Problem((*where, "suspend"), "does not go with the autoscaler")


def _restarts(document: Manifest) -> Iterator[Problem]:
    at, cluster = cluster_of(document)
    if cluster.get("autoscalerOptions", {}).get("version") != "v2" or not cluster.get("enableInTreeAutoscaling"):
        return
    groups = [("headGroupSpec", cluster["headGroupSpec"])]
    groups += [(group["groupName"], group) for group in cluster.get("workerGroupSpecs", [])]
    for name, group in groups:
        if group["template"]["spec"].get("restartPolicy", "Never") != "Never":
            yield Problem((*at, name), "must have restartPolicy Never, or none, under autoscaler v2")


def _kueue(document: Manifest) -> Iterator[Problem]:
    """What a queue of Kueue does not take."""
    metadata = document["metadata"]
    if QUEUE_LABEL not in metadata.get("labels", {}):
        return
    at, cluster = cluster_of(document)
    job_at, job = _job_of(document)
    elastic = metadata.get("annotations", {}).get(ELASTIC) == "true"
    if cluster.get("enableInTreeAutoscaling") and not elastic:
        wrong = "Kueue takes no autoscaler without its gate ElasticJobsViaWorkloadSlices"
        yield Problem(
            (*at, "enableInTreeAutoscaling"), wrong, "write `elastic_jobs_gate: true` in the pool where it is on"
        )
    if document["kind"] == "RayJob" and not job.get("shutdownAfterJobFinishes"):
        yield Problem((*job_at, "shutdownAfterJobFinishes"), "must be true in a queue of Kueue")
    if job.get("clusterSelector"):
        yield Problem((*job_at, "clusterSelector"), "is not taken in a queue of Kueue")
    groups = cluster.get("workerGroupSpecs", [])
    submits = job.get("submissionMode", "K8sJobMode") == "K8sJobMode" and document["kind"] == "RayJob"
    most = KUEUE_POD_SETS - 1 - submits
    if len(groups) > most:
        beside = "head and submitter" if submits else "the head"
        wrong = f"are {len(groups)}; beside {beside} Kueue holds {most}"
        left_over = ", ".join(group["groupName"] for group in groups[most:])
        yield Problem((*at, "workerGroupSpecs"), wrong, f"leave {left_over} out of the pool's cpu_groups")
    if any(group["groupName"] == "head" for group in groups):
        yield Problem((*at, "workerGroupSpecs"), "holds a group `head`, which is Kueue's word for the head")


def _serve_port(document: Manifest) -> Iterator[Problem]:
    """KubeRay takes the port of the clients' service from the head, whoever answers."""
    if document["kind"] != "RayService":
        return
    path, cluster = cluster_of(document)
    containers = cluster.get("headGroupSpec", {}).get("template", {}).get("spec", {}).get("containers", [{}])
    names = [str(port.get("name", "")) for port in containers[0].get("ports", [])]
    if not any(name == "serve" or name.startswith("serve-") for name in names):
        where = (*path, "headGroupSpec", "template", "spec", "containers", 0, "ports")
        yield Problem(where, "has no port named `serve`: the service for clients would not be made")


RULES: Final[tuple[Rule, ...]] = (_names, _ends, _submission, _groups, _restarts, _serve_port, _kueue)
