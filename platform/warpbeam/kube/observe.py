"""Everything that a cluster says about one run, kept fresh by watches: what `why.verdict` and `narrate` look at.

One thread a kind follows its objects; whoever looks gets the newest of each. A kind that may not be read, or that the
cluster does not have, is left out, except the RayJob itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warpbeam.errors import WarpbeamError
from warpbeam.kube import names
from warpbeam.kube.watch import Objects, Patience, Source, follow
from warpbeam.kube.why import QUEUE_LABEL, Seen

Object = Mapping[str, Any]

CLUSTER_LABEL: Final = "ray.io/cluster"
JOB_LABEL: Final = "job-name"
FROM_LABEL: Final = "ray.io/originated-from-cr-name"


@dataclass(frozen=True)
class Target:
    """A run in a cluster.

    Args:
        name: of its RayJob.
    """

    namespace: str
    name: str
    run: str
    team: str

    @property
    def pod_selector(self) -> str:
        """Labels that all of its pods have."""
        return f"{names.RUN}={self.run},{names.TEAM}={self.team}"

    def selectors(self) -> dict[str, dict[str, str]]:
        """By kind: what to look at."""
        return {
            "RayJob": {"fields": f"metadata.name={self.name}"},
            "RayCluster": {"labels": f"{FROM_LABEL}={self.name}"},
            "Pod": {"labels": self.pod_selector},
            "Event": {},
            "Workload": {},
        }


def gather(target: Target, objects: Mapping[str, Iterable[Object]]) -> Seen | None:
    """What belongs to the run, of all that was read; None where there is no RayJob.

    Args:
        objects: by kind.
    """
    job = next((found for found in objects.get("RayJob", ()) if found["metadata"]["name"] == target.name), None)
    if job is None:
        return None
    cluster_name = job.get("status", {}).get("rayClusterName", "")
    clusters = [found for found in objects.get("RayCluster", ()) if found["metadata"]["name"] == cluster_name]
    return Seen(
        ray_job=job,
        ray_cluster=clusters[0] if clusters else None,
        pods=[pod for pod in objects.get("Pod", ()) if _belongs(pod, target.name, cluster_name)],
        events=[event for event in objects.get("Event", ()) if _is_about(event, target.name)],
        workload=next((found for found in objects.get("Workload", ()) if _is_owned(found, job)), None),
    )


def look(source: Source, target: Target) -> Seen | None:
    """One look, without a watch; None where there is no RayJob.

    Raises:
        WarpbeamError: the RayJob cannot be read.
    """
    objects: dict[str, Iterable[Object]] = {}
    for kind, selector in target.selectors().items():
        if kind == "Workload" and not _is_queued(objects["RayJob"]):
            continue
        try:
            objects[kind] = source.list(kind, target.namespace, **selector).items
        except WarpbeamError as error:
            if kind == "RayJob" or error.reason not in ("kube_forbidden", "no_crds"):
                raise
    return gather(target, objects)


class Observer:
    """Follows one run until the process ends.

    Args:
        patience: how long each watch asks again, and whom it tells; made for each thread.
    """

    def __init__(self, source: Source, target: Target, patience: Callable[[], Patience] = Patience) -> None:
        self._source = source
        self._target = target
        self._patience = patience
        self._objects: dict[str, Objects] = {}
        self._listed: set[str] = set()
        self._fresh = threading.Condition()
        self._changed = False
        self._failure: WarpbeamError | None = None

    def start(self, *, queued: bool) -> None:
        """Begin to watch.

        Args:
            queued: Kueue holds it, so that its Workload is watched as well.
        """
        for kind, selector in self._target.selectors().items():
            if kind != "Workload" or queued:
                threading.Thread(target=self._follow, args=(kind, selector), daemon=True).start()
            else:
                self._listed.add(kind)

    def wait(self, timeout_s: float) -> Seen | None:
        """The run once something has changed, or after `timeout_s`; None where its RayJob is not there (any more).

        Raises:
            WarpbeamError: its RayJob cannot be watched.
        """
        with self._fresh:
            self._fresh.wait_for(
                lambda: self._changed and len(self._listed) == len(self._target.selectors()), timeout_s
            )
            self._changed = False
            if self._failure is not None:
                raise self._failure
            return gather(self._target, {kind: list(found.values()) for kind, found in self._objects.items()})

    @property
    def listed(self) -> bool:
        """Whether the RayJob was looked for at least once."""
        return "RayJob" in self._listed

    def _follow(self, kind: str, selector: Mapping[str, str]) -> None:
        try:
            for objects in follow(
                self._source, kind, self._target.namespace, patience=self._patience(), **dict(selector)
            ):
                self._take(kind, objects)
        except WarpbeamError as error:
            self._take(kind, {}, error if kind == "RayJob" else None)

    def _take(self, kind: str, objects: Objects, failure: WarpbeamError | None = None) -> None:
        with self._fresh:
            self._objects[kind] = objects
            self._listed.add(kind)
            self._failure = self._failure or failure
            self._changed = True
            self._fresh.notify_all()


def _belongs(pod: Object, job: str, cluster: str) -> bool:
    labels = pod["metadata"].get("labels", {})
    label, wanted = (CLUSTER_LABEL, cluster) if CLUSTER_LABEL in labels else (JOB_LABEL, job)
    return bool(labels.get(label) == wanted)


def _is_about(event: Object, job: str) -> bool:
    about = str(event.get("involvedObject", {}).get("name", ""))
    return about == job or about.startswith(f"{job}-")


def _is_owned(workload: Object, job: Object) -> bool:
    owners = workload["metadata"].get("ownerReferences", [])
    return job["metadata"].get("uid") in [owner.get("uid") for owner in owners]


def _is_queued(jobs: Iterable[Object]) -> bool:
    return any(QUEUE_LABEL in job["metadata"].get("labels", {}) for job in jobs)
