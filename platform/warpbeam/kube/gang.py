"""All ranks or none: what each scheduler wants to find on an object, and which of them cannot keep the promise there.

Labels and fields are those that KubeRay 1.6.2 and Kueue 0.17 read. What would silently start in half, or never, is
refused with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from warpbeam.errors import PlatformError
from warpbeam.kube.order import Kind, Order

KUEUE_DEFAULT_QUEUE: Final = "default"
"""The LocalQueue that Kueue gives to jobs that name none."""


@dataclass(frozen=True)
class Gang:
    """What an object carries.

    Args:
        suspend: it is created without pods, and whoever lets it in sets this to false.
    """

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    suspend: bool = False


def gang_of(order: Order) -> Gang:
    """The gang's marks on the rendered object.

    Raises:
        PlatformError: this scheduler cannot hold this kind of object together.
    """
    _refuse_what_has_no_gang(order)
    kubernetes, queue = order.kubernetes, order.kubernetes.team_queue(order.team) or ""
    match kubernetes.gang:
        case "kueue":
            labels = {"kueue.x-k8s.io/queue-name": queue}
            if kubernetes.queue_priority:
                labels["kueue.x-k8s.io/priority-class"] = kubernetes.queue_priority
            elastic = {"kueue.x-k8s.io/elastic-job": "true"} if order.autoscaling else {}
            return Gang(labels, elastic, suspend=True)
        case "volcano":
            labels = {"volcano.sh/queue-name": queue}
            if kubernetes.priority_class:
                labels["ray.io/priority-class-name"] = kubernetes.priority_class
            return Gang(labels)
        case "yunikorn":
            application = {"yunikorn.apache.org/app-id": order.name, "yunikorn.apache.org/queue": queue}
            return Gang({"ray.io/gang-scheduling-enabled": "true", **application})
        case "scheduler-plugins":
            return Gang({"ray.io/gang-scheduling-enabled": "true"})
        case "gate":
            return Gang(suspend=True)


def _refuse_what_has_no_gang(order: Order) -> None:
    by, kind = order.kubernetes.gang, order.kind
    if by == "scheduler-plugins" and kind in (Kind.RAYJOB, Kind.RAYCRONJOB):
        raise PlatformError(
            "scheduler-plugins cannot hold a RayJob together",
            why="KubeRay 1.6.2 makes its PodGroup only for a RayCluster; a RayJob would wait for ever",
            fix="in the pool file: `gang: gate` (or kueue, volcano, yunikorn), or render --kind raycluster",
            reason="no_gang",
        )
    if kind is not Kind.RAYCRONJOB:
        return
    if by in ("volcano", "yunikorn"):
        raise PlatformError(
            f"{by} cannot hold the RayJobs of a RayCronJob together",
            why=f"KubeRay 1.6.2 gives them no labels, and {by} finds its queue and gang by labels",
            fix="in the pool file: `gang: kueue` or `gang: gate`; or let a schedule of your own apply a RayJob",
            reason="no_gang",
        )
    queue = order.kubernetes.team_queue(order.team)
    if by == "kueue" and queue != KUEUE_DEFAULT_QUEUE:
        raise PlatformError(
            f"the RayJobs of a RayCronJob would not reach queue `{queue}`",
            why="KubeRay 1.6.2 gives them no labels, so that only Kueue's default queue takes them",
            fix=f"name the team's LocalQueue `{KUEUE_DEFAULT_QUEUE}`, in Kueue and in the pool file",
            reason="no_gang",
        )
