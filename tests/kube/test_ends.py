"""What is held is given back soon, whatever a run was doing."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kube import sft_job
from tests.kube.lab.api import Api
from tests.kube.overlay import open_namespace
from tests.kube.runs import RAY, Run, Tell, make_room, rename, rendered

Object = dict[str, Any]
NAMESPACE = "team-ends"
STORE = "http://10.88.0.1:9"
"""Nobody is there."""
DEADLINE_S = 15


@pytest.fixture(scope="module")
def startable(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Object]:
    """A RayJob whose pods start."""
    shop = sft_job.Shop(endpoint=STORE, access_key="a", secret_key="b")
    team = {"namespace": NAMESPACE}
    job, pool = sft_job.write_files(
        tmp_path_factory.mktemp("ends"), shop, name="ends", steps=10, teams={sft_job.TEAM: team}
    )
    make_room(api, NAMESPACE)
    api.apply(open_namespace({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))
    for document in rendered(job, pool, "--kind", "tenancy"):
        if document["kind"] in ("ServiceAccount", "ConfigMap"):
            api.apply(document)
    sft_job.put_secret(api, shop, NAMESPACE)
    (found,) = (each for each in rendered(job, pool) if each["kind"] == "RayJob")
    found["spec"]["suspend"] = False
    yield found
    api.delete("v1", "Namespace", None, NAMESPACE)


def test_workers_without_a_head_are_given_up_at_once(api: Api, startable: Object, tell: Tell) -> None:
    """They wait for a head that no node takes; their grace is a minute, and they need none of it."""
    document = copy.deepcopy(startable)
    cluster = document["spec"]["rayClusterSpec"]
    cluster["headGroupSpec"]["template"]["spec"]["nodeSelector"] = {"no": "where"}
    api.apply(document)
    run = Run(api, NAMESPACE, document["metadata"]["name"])
    try:
        run.until("workers that wait", lambda run: waiting(run) == 2, 60)
        began = time.monotonic()
        api.delete(RAY, "RayJob", NAMESPACE, run.name)
        run.until("their end", lambda run: not run.pods(), 60)
        took_s = time.monotonic() - began
    finally:
        run.delete()
    tell(f"given back after {took_s:.0f} s")
    grace_s = cluster["workerGroupSpecs"][0]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert took_s < grace_s / 2


def test_a_gang_that_never_completes_gives_all_back_at_its_deadline(api: Api, startable: Object, tell: Tell) -> None:
    """Its workers wait for a head whose image nobody has."""
    document = copy.deepcopy(startable)
    rename(document, "late")
    document["spec"]["preRunningDeadlineSeconds"] = DEADLINE_S
    head = document["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    head["image"] = "registry.invalid/train@sha256:" + "1" * 64
    api.apply(document)
    began = time.monotonic()
    run = Run(api, NAMESPACE, "late")
    try:
        run.until("its pods", lambda run: len(run.pods()) >= 3, 60)
        run.until("its end", lambda run: run.status() == "Failed", 60)
        ended_s = time.monotonic() - began
        run.until("the end of its pods", lambda run: not run.pods(), 60)
        told = run.verdict()
    finally:
        run.delete()
    tell(f"ended after {ended_s:.0f} s, given back after {time.monotonic() - began:.0f} s: {told.sentence}")
    assert told.reason == "deadline"
    assert ended_s > DEADLINE_S - 1, "KubeRay counts whole seconds"


def waiting(run: Run) -> int:
    """Workers whose first container waits for the head."""
    statuses = [status for pod in run.pods() for status in pod["status"].get("initContainerStatuses", [])]
    return sum(status["name"] == "wait-gcs-ready" and "running" in status["state"] for status in statuses)
