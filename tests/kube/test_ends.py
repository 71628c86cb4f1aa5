"""What is held is given back soon, whatever a run was doing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kube import sft_job
from tests.kube.lab.api import Api
from tests.kube.overlay import with_this_python
from tests.kube.runs import RAY, Run, make_room, rendered

Object = dict[str, Any]
NAMESPACE = "team-ends"
STORE = "http://10.88.0.1:9"
"""Nobody is there."""


@pytest.fixture(scope="module")
def startable(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Object]:
    """A RayJob whose pods start."""
    shop = sft_job.Shop(endpoint=STORE, access_key="a", secret_key="b")
    team = {"namespace": NAMESPACE}
    job, pool = sft_job.write_files(
        tmp_path_factory.mktemp("ends"), shop, name="ends", steps=10, teams={sft_job.TEAM: team}
    )
    make_room(api, NAMESPACE)
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for document in rendered(job, pool, "--kind", "tenancy"):
        if document["kind"] in ("ServiceAccount", "ConfigMap"):
            api.apply(document)
    sft_job.put_secret(api, shop, NAMESPACE)
    (found,) = (each for each in rendered(job, pool) if each["kind"] == "RayJob")
    found["spec"]["suspend"] = False
    yield with_this_python(found)
    api.delete("v1", "Namespace", None, NAMESPACE)


def test_workers_without_a_head_are_given_up_at_once(api: Api, startable: Object) -> None:
    """They wait for a head that no node takes; their grace is a minute, and they need none of it."""
    cluster = startable["spec"]["rayClusterSpec"]
    cluster["headGroupSpec"]["template"]["spec"]["nodeSelector"] = {"no": "where"}
    api.apply(startable)
    run = Run(api, NAMESPACE, startable["metadata"]["name"])
    try:
        run.until("workers that wait", lambda run: waiting(run) == 2, 60)
        began = time.monotonic()
        api.delete(RAY, "RayJob", NAMESPACE, run.name)
        run.until("their end", lambda run: not run.pods(), 60)
        took_s = time.monotonic() - began
    finally:
        run.delete()
    print(f"given back after {took_s:.0f} s")
    grace_s = cluster["workerGroupSpecs"][0]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert took_s < grace_s / 2


def waiting(run: Run) -> int:
    """Workers whose first container waits for the head."""
    statuses = [status for pod in run.pods() for status in pod["status"].get("initContainerStatuses", [])]
    return sum(status["name"] == "wait-gcs-ready" and "running" in status["state"] for status in statuses)
