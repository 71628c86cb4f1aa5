"""A team's namespace refuses what was edited by hand, one rule after the other: the API server does it.

Most rules look at pods, since everything that computes becomes one: the RayJob itself is taken, the operator may not
make its pods, and `kube/why.py` says which rule it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.lab.api import Api, Refused
from tests.kube.lab.layout import REPOSITORY
from tests.kube.runs import RAY, Run, pods_of, pool_file, rename, rendered, tenancy

Object = dict[str, Any]
JOB = REPOSITORY / "cluster/examples/job/job.yaml"
SIZE = ("--accelerators", "16")
QUEUE = "kueue.x-k8s.io/queue-name"
Edit = Callable[[Object], None]


def without_queue(pool: Object) -> None:
    """No Kueue: a RayJob is let in by whoever sets its `suspend`."""
    pool["kubernetes"]["gang"] = "gate"
    del pool["kubernetes"]["queue"]


def without_fabric(pool: Object) -> None:
    """Its namespace then enforces `restricted`."""
    without_queue(pool)
    del pool["kubernetes"]["fabric"]


@pytest.fixture(scope="module")
def restricted(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A pool whose namespace enforces Pod Security."""
    path = pool_file(tmp_path_factory.mktemp("pool"), "dgx-h100", without_fabric, namespace="team-restricted")
    with tenancy(api, rendered(JOB, path, "--kind", "tenancy", *SIZE)):
        yield path


@pytest.fixture(scope="module")
def privileged(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A pool whose fabric needs a privileged namespace, where policies stand in for Pod Security."""
    path = pool_file(tmp_path_factory.mktemp("pool"), "dgx-h100", without_queue, namespace="team-privileged")
    with tenancy(api, rendered(JOB, path, "--kind", "tenancy", *SIZE)):
        yield path


def worker(job: Object) -> Object:
    """The ranks' pods."""
    spec: Object = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    return spec


def security(job: Object) -> Object:
    found: Object = worker(job)["containers"][0]["securityContext"]
    return found


def other_image(job: Object) -> None:
    worker(job)["containers"][0]["image"] = "registry.test/mine@sha256:" + "1" * 64


def helper_image(job: Object) -> None:
    container = copy.deepcopy(worker(job)["containers"][0])
    for key in ("lifecycle", "ports"):
        container.pop(key, None)
    worker(job)["initContainers"] = [{**container, "name": "mine", "image": "registry.test/mine:1"}]


def other_account(job: Object) -> None:
    worker(job)["serviceAccountName"] = "default"


def no_limits(job: Object) -> None:
    del worker(job)["containers"][0]["resources"]["limits"]["memory"]


def too_much(job: Object) -> None:
    for kind in ("requests", "limits"):
        worker(job)["containers"][0]["resources"][kind]["nvidia.com/gpu"] = "64"


def host_folder(job: Object) -> None:
    worker(job)["volumes"].append({"name": "host", "hostPath": {"path": "/"}})


def host_network(job: Object) -> None:
    worker(job)["hostNetwork"] = True


def may_become_root(job: Object) -> None:
    security(job)["allowPrivilegeEscalation"] = True


def more_capabilities(job: Object) -> None:
    security(job)["capabilities"]["add"] = ["SYS_ADMIN"]


EVERYWHERE: dict[str, tuple[Edit, str, str]] = {
    "image": (other_image, "policy", "only the pool's image may run here"),
    "image of a helper": (helper_image, "policy", "only the pool's image may run here"),
    "account": (other_account, "policy", "pods here run as service account warpbeam"),
    "limits": (no_limits, "policy", "every container must state its limits"),
    "quota": (too_much, "quota", "requests.nvidia.com/gpu=64 more"),
}
BY_POD_SECURITY: dict[str, tuple[Edit, str, str]] = {
    "folder": (host_folder, "pod_security", "restricted volume types"),
    "network": (host_network, "pod_security", "host namespaces"),
    "root": (may_become_root, "pod_security", "allowPrivilegeEscalation != false"),
    "capability": (more_capabilities, "pod_security", "SYS_ADMIN"),
}
BY_POLICY: dict[str, tuple[Edit, str, str]] = {
    "folder": (host_folder, "policy", "no folder of a host may be mounted here"),
    "network": (host_network, "policy", "no pod here shares its host's network"),
    "root": (may_become_root, "policy", "every container must refuse to become privileged"),
    "capability": (more_capabilities, "policy", "IPC_LOCK is the only capability"),
}


def edited(pool: Path, name: str, edit: Edit) -> Object:
    """A RayJob with one change, let in past queue and gate."""
    (found,) = (each for each in rendered(JOB, pool, *SIZE) if each["kind"] == "RayJob")
    rename(found, f"edited-{name.replace(' ', '-')}")
    found["spec"]["suspend"] = False
    edit(found)
    return found


def is_refused(api: Api, pool: Path, name: str, case: tuple[Edit, str, str]) -> None:
    """The operator cannot make its pods, and the reason is told."""
    edit, reason, words = case
    document = edited(pool, name, edit)
    run = Run(api, pool.stem, document["metadata"]["name"])
    api.apply(document)
    try:
        assert words in run.until_told(reason, 60).sentence
        workers = [pod for pod in run.pods() if pod["metadata"]["labels"].get("ray.io/node-type") == "worker"]
        assert not workers
    finally:
        run.delete()


@pytest.mark.parametrize("name", EVERYWHERE)
def test_no_pod_is_made_of_what_was_edited(api: Api, restricted: Path, name: str) -> None:
    is_refused(api, restricted, name, EVERYWHERE[name])


@pytest.mark.parametrize("name", BY_POD_SECURITY)
def test_pod_security_refuses_what_reaches_the_host(api: Api, restricted: Path, name: str) -> None:
    is_refused(api, restricted, name, BY_POD_SECURITY[name])


@pytest.mark.parametrize("name", BY_POLICY)
def test_policies_do_where_pod_security_cannot(api: Api, privileged: Path, name: str) -> None:
    is_refused(api, privileged, name, BY_POLICY[name])


@pytest.fixture(scope="module")
def queued(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A pool behind Kueue."""
    path = pool_file(tmp_path_factory.mktemp("pool"), "dgx-h100", lambda _: None, namespace="team-queued")
    with tenancy(api, rendered(JOB, path, "--kind", "tenancy", *SIZE)):
        yield path


@pytest.mark.parametrize("queue", [None, "other"])
def test_a_rayjob_outside_the_teams_queue_is_refused_itself(api: Api, queued: Path, queue: str | None) -> None:
    document = edited(queued, "queue", lambda _: None)
    del document["metadata"]["labels"][QUEUE]
    if queue is not None:
        document["metadata"]["labels"][QUEUE] = queue
    with pytest.raises(Refused, match="must be training"):
        api.apply(document)
    assert api.get(RAY, "RayJob", queued.stem, document["metadata"]["name"]) is None


def test_no_ephemeral_container_joins_a_pod(api: Api, restricted: Path) -> None:
    documents = rendered(JOB, restricted, *SIZE)
    *_, pod = (
        each for each in pods_of(documents, restricted.stem) if each["spec"]["containers"][0]["name"] == "ray-head"
    )
    api.apply(pod)
    path = api.path("v1", "Pod", restricted.stem, pod["metadata"]["name"])
    container = {"name": "look", "image": pod["spec"]["containers"][0]["image"], "securityContext": SAFE}
    with pytest.raises(Refused, match="no ephemeral containers here"):
        api.patch(f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": [container]}}, kind="strategic-merge")
    api.delete("v1", "Pod", restricted.stem, pod["metadata"]["name"], grace_s=0)


SAFE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
