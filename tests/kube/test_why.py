"""Each way in which a run does not run, made for real: `kube/why.py` names it from the live objects, within seconds."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.kube import sft_job
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.nodes import remove_fake_nodes
from tests.kube.overlay import open_namespace, pod_specs
from tests.kube.runs import Run, Tell, make_room, rename, rendered

Object = dict[str, Any]
NAMESPACE = "team-why"
STORE = "http://10.88.0.1:9"
"""Nobody is there: no run comes so far."""


@dataclass(frozen=True)
class Case:
    """How a run is spoilt, and what is said then."""

    change: Callable[[Object], None]
    reason: str
    words: tuple[str, ...]
    kubernetes: Object = field(default_factory=dict)
    within_s: float = 60


def head(job: Object) -> Object:
    """The head's pod."""
    spec: Object = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    return spec


def workers(job: Object) -> Object:
    """The ranks' pods."""
    spec: Object = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    return spec


def absent_image(job: Object) -> None:
    head(job)["containers"][0]["image"] = "registry.invalid/train@sha256:" + "1" * 64


def no_account(job: Object) -> None:
    for spec in pod_specs(job):
        spec["serviceAccountName"] = "nobody"


def no_secret(job: Object) -> None:
    for spec in pod_specs(job):
        for variable in spec["containers"][0].get("env", []):
            if "secretKeyRef" in variable.get("valueFrom", {}):
                variable["valueFrom"]["secretKeyRef"]["name"] = "absent"


def too_many_gpus(job: Object) -> None:
    for kind in ("requests", "limits"):
        workers(job)["containers"][0]["resources"][kind]["nvidia.com/gpu"] = "9"


def onto_tainted(job: Object) -> None:
    workers(job)["nodeSelector"] = {"type": "kwok"}


def beyond_quota(job: Object) -> None:
    for kind in ("requests", "limits"):
        workers(job)["containers"][0]["resources"][kind]["memory"] = "400Gi"


def little_memory(job: Object) -> None:
    for kind in ("requests", "limits"):
        head(job)["containers"][0]["resources"][kind]["memory"] = "48Mi"


CASES = {
    "image": Case(absent_image, "image", ("cannot pull registry.invalid/train", "on node node")),
    "gpu": Case(too_many_gpus, "unschedulable", ("has no place", "Insufficient nvidia.com/gpu")),
    "taint": Case(onto_tainted, "unschedulable", ("has no place", "untolerated taint")),
    "quota": Case(beyond_quota, "quota", ("quota warpbeam is spent", "memory=400Gi")),
    "memory": Case(little_memory, "out_of_memory", ("was ended for using more than its 48Mi of memory",)),
    "account": Case(no_account, "service_account", ("there is no service account nobody",)),
    "secret": Case(no_secret, "missing_object", ('secret "absent" not found',)),
}


@pytest.fixture(scope="module")
def spoilable(lab: Laboratory, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Object]:
    """A RayJob that would run, in a namespace with a quota; two nodes without machines stand beside the real ones."""
    folder = tmp_path_factory.mktemp("why")
    team = {"namespace": NAMESPACE, "quota": {"accelerators": 0, "cpus": 100, "memory_gib": 100}}
    shop = sft_job.Shop(endpoint=STORE, access_key="a", secret_key="b")
    job, pool = sft_job.write_files(folder, shop, name="spoilt", steps=10, teams={sft_job.TEAM: team})
    make_room(api, NAMESPACE)
    api.apply(open_namespace({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))
    for document in rendered(job, pool, "--kind", "tenancy"):
        if document["kind"] in ("ServiceAccount", "ConfigMap", "ResourceQuota"):
            api.apply(document)
    sft_job.put_secret(api, shop, NAMESPACE)
    lab.add_fake_nodes(2)
    (found,) = (each for each in rendered(job, pool) if each["kind"] == "RayJob")
    yield found
    remove_fake_nodes(api)
    api.delete("v1", "Namespace", None, NAMESPACE)


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named(api: Api, spoilable: Object, name: str, tell: Tell) -> None:
    case = CASES[name]
    document = copy.deepcopy(spoilable)
    rename(document, name)
    document["spec"]["suspend"] = False
    case.change(document)
    run = Run(api, NAMESPACE, name)
    began = time.monotonic()
    api.apply(document)
    try:
        found = run.until_told(case.reason, case.within_s)
        tell(f"{name}: {found.sentence} ({time.monotonic() - began:.1f} s)")
        for words in case.words:
            assert words in found.sentence
        assert len(found.sentence) < 500, "one sentence, for a person"
    finally:
        run.delete()
