"""Jobs and pools as a user and a platform team write them, rendered by the command line, applied, and looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from tests.kube.lab.api import Api, Refused
from tests.kube.lab.layout import REPOSITORY
from tests.kube.lab.sandbox import wait_for
from tests.kube.overlay import pod_templates
from warpbeam.cli.main import app
from warpbeam.kube.names import RUN
from warpbeam.kube.why import Seen, Verdict, verdict

Object = dict[str, Any]
Tell = Callable[[str], None]
"""The fixture `tell`."""
RAY = "ray.io/v1"
KUEUE = "kueue.x-k8s.io/v1beta2"
CLUSTER_WIDE = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def rendered(job: Path, pool: Path, *words: str) -> list[Object]:
    """What `warpbeam render` writes.

    Raises:
        WarpbeamError: it refuses.
    """
    command = ["render", str(job), "--pool", str(pool), "--working-dir", str(job.parent), *words]
    done = CliRunner().invoke(app, command)
    if done.exception is not None:
        raise done.exception
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def pool_file(folder: Path, base: str, change: Callable[[Object], None], *, namespace: str) -> Path:
    """One of the repository's pools with another namespace and other changes."""
    content = yaml.load((REPOSITORY / f"cluster/pools/{base}.yaml").read_text(), yaml.CSafeLoader)
    for team in content["kubernetes"]["teams"].values():
        team["namespace"] = namespace
    change(content)
    path = folder / f"{namespace}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def pods_of(documents: Sequence[Object], namespace: str) -> Iterator[Object]:
    """Each pod template as the pod that a controller would make of it."""
    for number, template in enumerate(pod_templates(list(documents))):
        metadata = {**template["metadata"], "name": f"pod-{number}", "namespace": namespace}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def rename(ray_job: Object, name: str) -> None:
    """Make another run of a rendered RayJob."""
    ray_job["metadata"]["name"] = name
    for template in (ray_job, *pod_templates(ray_job)):
        template["metadata"]["labels"][RUN] = name


def queue_objects(namespace: str, room: Object, flavor: Object) -> Iterator[Object]:
    """What a platform team gives to Kueue: a kind of machine, its quota, the team's queue, and who goes first."""
    yield flavor
    machines = flavor["metadata"]["name"]
    quotas = [{"name": name, "nominalQuota": amount} for name, amount in room.items()]
    group = {"coveredResources": list(room), "flavors": [{"name": machines, "resources": quotas}]}
    preemption = {"withinClusterQueue": "LowerPriority"}
    spec = {"namespaceSelector": {}, "resourceGroups": [group], "preemption": preemption}
    yield {"kind": "ClusterQueue", "metadata": {"name": "training"}, "spec": spec}
    metadata = {"name": "training", "namespace": namespace}
    yield {"kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": "training"}}
    yield {"kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 1000, "description": "first"}


@contextmanager
def tenancy(api: Api, documents: Sequence[Object]) -> Iterator[str]:
    """A team's namespace with all that guards it, in force; yields its name."""
    (namespace,) = (each["metadata"]["name"] for each in documents if each["kind"] == "Namespace")
    api.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "training"}, "value": 1000}
    )
    make_room(api, namespace)
    try:
        for document in documents:
            api.apply(document)
        wait_for("the namespace's policies", lambda: _guards(api, namespace))
        wait_for("the namespace's quota", lambda: _counts(api, namespace))
        yield namespace
    finally:
        for document in documents:
            if document["kind"] in CLUSTER_WIDE:
                api.delete(document["apiVersion"], document["kind"], None, document["metadata"]["name"])
        api.delete("v1", "Namespace", None, namespace)


def make_room(api: Api, namespace: str) -> None:
    """Wait until an earlier test's namespace has gone: one that is being deleted takes nothing."""

    def has_gone() -> bool:
        found = api.get("v1", "Namespace", None, namespace)
        return found is None or "deletionTimestamp" not in found["metadata"]

    wait_for(f"the end of an earlier {namespace}", has_gone)


def _guards(api: Api, namespace: str) -> bool:
    """A policy is in force some moments after it was written."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    security |= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [{"name": "a", "image": "nobody/knows:1", "securityContext": security}]}
    try:
        api.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": namespace}, "spec": spec},
            dry_run=True,
        )
    except Refused as refused:
        return "only the pool's image" in refused.message
    return False


def _counts(api: Api, namespace: str) -> bool:
    quotas = api.list("v1", "ResourceQuota", namespace)
    return all("used" in quota.get("status", {}) for quota in quotas)


@dataclass(frozen=True)
class Run:
    """A RayJob on the laboratory."""

    api: Api
    namespace: str
    name: str

    def is_there(self) -> bool:
        """Whether there is a RayJob of its name."""
        return self.api.get(RAY, "RayJob", self.namespace, self.name) is not None

    def ray_job(self) -> Object:
        """The RayJob as it is now."""
        found = self.api.get(RAY, "RayJob", self.namespace, self.name)
        assert found is not None, f"RayJob {self.name} has gone"
        return found

    def status(self) -> str:
        """KubeRay's word for it."""
        return str(self.ray_job().get("status", {}).get("jobDeploymentStatus", ""))

    def cluster_name(self) -> str:
        """Of its RayCluster; empty before there is one."""
        return str(self.ray_job().get("status", {}).get("rayClusterName", ""))

    def cluster(self) -> Object | None:
        """Its RayCluster."""
        name = self.cluster_name()
        return self.api.get(RAY, "RayCluster", self.namespace, name) if name else None

    def pods(self) -> list[Object]:
        """Head, workers and submitter."""
        return self.api.list("v1", "Pod", self.namespace, f"{RUN}={self.name}")

    def pods_of(self, kind: str) -> list[Object]:
        """Those of its present cluster: kind head or worker."""
        labels = f"ray.io/cluster={self.cluster_name()},ray.io/node-type={kind}"
        return self.api.list("v1", "Pod", self.namespace, labels)

    def verdict(self) -> Verdict:
        """What `kube/why.py` makes of the live objects."""
        cluster = self.cluster()
        pods = self.pods()
        about = {self.name, *(pod["metadata"]["name"] for pod in pods)}
        about |= {cluster["metadata"]["name"]} if cluster else set()
        events = self.api.list("v1", "Event", self.namespace)
        own = [event for event in events if event["involvedObject"]["name"] in about]
        return verdict(Seen(self.ray_job(), cluster, pods, own, self.workload()))

    def workload(self) -> Object | None:
        """What Kueue made of it, where there is Kueue."""
        if "Workload" not in self.api.kinds(KUEUE):
            return None
        for found in self.api.list(KUEUE, "Workload", self.namespace):
            if any(owner["name"] == self.name for owner in found["metadata"].get("ownerReferences", [])):
                return found
        return None

    def let_in(self) -> None:
        """What a gate or a queue does."""
        path = self.api.path(RAY, "RayJob", self.namespace, self.name)
        self.api.patch(path, {"spec": {"suspend": False}})

    def until(self, what: str, ready: Callable[[Run], object], timeout_s: float) -> None:
        """Poll; a failure tells the run's own sentence."""
        try:
            wait_for(what, lambda: ready(self), timeout_s)
        except Exception as error:
            told = f"{self.status()}: {self.verdict()}" if self.is_there() else "the RayJob has gone"
            raise AssertionError(f"{error}; {told}; pods: {[_summary(pod) for pod in self.pods()]}") from error

    def until_told(self, reason: str, timeout_s: float) -> Verdict:
        """Poll until the verdict has this reason; returns it."""
        told: list[Verdict] = []

        def is_told(run: Run) -> bool:
            told.append(run.verdict())
            return told[-1].reason == reason

        self.until(f"reason {reason}", is_told, timeout_s)
        return told[-1]

    def delete(self) -> None:
        """Take it away and wait until its pods have gone."""
        self.api.delete(RAY, "RayJob", self.namespace, self.name)
        for pod in self.pods():  # what nobody waits for needs no grace
            self.api.delete("v1", "Pod", self.namespace, pod["metadata"]["name"], grace_s=0)
        wait_for(f"the end of {self.name}", lambda: not self.pods())


def _summary(pod: Object) -> str:
    going = " (going)" if "deletionTimestamp" in pod["metadata"] else ""
    return f"{pod['metadata']['name']} {pod['status'].get('phase')}{going}"
