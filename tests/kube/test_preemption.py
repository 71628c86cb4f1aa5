"""A run that trains has to go for one of a higher priority: it saves, waits, is let in again, and ends Complete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kube import sft_job
from tests.kube.lab import images
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.overlay import open_namespace, opened
from tests.kube.progress import steps
from tests.kube.runs import KUEUE, Object, Run, Tell, queue_objects, rendered, tenancy
from tests.kube.user import Command
from warpbeam.record.states import RunState
from warpbeam.record.view import RunView
from warpbeam.storage import StorageConfig, open_store

NAME = "victim"
STEPS = 80
PACE_S = 0.5
URGENT = "urgent"
ROOM = {"cpu": "8", "memory": "200Gi", "ephemeral-storage": "200Gi"}
"""For the run, which asks for seven CPUs, and nothing beside it."""


def test_a_preempted_run_saves_and_goes_on_where_it_was(
    lab: Laboratory, api: Api, with_kueue: None, s3: StorageConfig, tmp_path: Path, tell: Tell
) -> None:
    """No step but the emergency save's could be where it goes on: the interval is longer than the run."""
    shop = sft_job.open_shop(lab, s3)
    job, pool = sft_job.write_files(
        tmp_path, shop, name=NAME, steps=STEPS, every_steps=10 * STEPS, pace_s=PACE_S, gang="kueue", queue="training"
    )
    view = RunView(open_store(s3), sft_job.TEAM, NAME)
    with tenancy(api, opened(rendered(job, pool, "--kind", "tenancy"))) as namespace, queue(api, namespace):
        sft_job.put_secret(api, shop)
        run = Run(api, namespace, NAME)
        with Command(lab, shop, job.parent, pool, ("submit", "job.yaml", "--kube")) as command:
            run.until("the RayJob", lambda run: run.is_there() or command.ended, 60)
            assert run.is_there(), command.said
            run.until("its first steps", lambda _: len(steps(view)) > 5, 300)
            assert view.log.newest_commit() is None, "nothing has saved yet"
            cluster, began = run.cluster_name(), time.monotonic()
            api.apply(urgent_job())
            tell(run.until_told("preempted", 60).sentence)
            told_s = time.monotonic() - began
            run.until("its save", lambda _: view.log.newest_commit(), 60)
            saved_s = time.monotonic() - began
            run.until("its pods' end", lambda run: not cluster_pods(run, cluster), 90)
            gone_s = time.monotonic() - began
            saved = view.log.newest_commit()
            assert saved is not None
            assert saved.step is not None
            wait_for_urgent(api, run)
            assert command.end(300) == 0, command.said[-4000:]
        assert run.status() == "Complete", run.verdict()
    tell(f"preempted: told {told_s:.0f} s, step {saved.step} saved {saved_s:.0f} s, pods gone {gone_s:.0f} s")
    assert 0 < saved.step < STEPS
    first, second = view.attempts()
    rows = [[int(row["step"]) for row in view.metrics(attempt)] for attempt in (first, second)]
    assert rows[0][-1] == saved.step
    assert rows[1] == list(range(saved.step + 1, STEPS + 1)), "each step once"
    assert view.state() == (RunState.DONE, "")


def wait_for_urgent(api: Api, run: Run) -> None:
    """Until the other one has run and left."""

    def has_run(_: Run) -> bool:
        found = api.get("batch/v1", "Job", URGENT, URGENT) or {}
        return bool(found.get("status", {}).get("succeeded"))

    run.until("the urgent job's end", has_run, 120)
    api.delete("v1", "Namespace", None, URGENT)


def cluster_pods(run: Run, cluster: str) -> list[Object]:
    """Head and workers of one of its clusters."""
    return [pod for pod in run.pods() if pod["metadata"]["labels"].get("ray.io/cluster") == cluster]


@contextmanager
def queue(api: Api, namespace: str) -> Iterator[None]:
    """The team's queue, with room for one of both, and another one of the same place."""
    api.apply(open_namespace({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": URGENT}}))
    flavor = {"kind": "ResourceFlavor", "metadata": {"name": "machines"}, "spec": {}}
    for where in (namespace, URGENT):
        for document in queue_objects(where, ROOM, flavor):
            api.apply({"apiVersion": KUEUE, **document})
    yield
    for kind, name in (("ClusterQueue", "training"), ("ResourceFlavor", "machines")):
        api.delete(KUEUE, kind, None, name)


def urgent_job() -> Object:
    """Anybody's: some seconds of half the place."""
    metadata = {
        "name": URGENT,
        "namespace": URGENT,
        "labels": {"kueue.x-k8s.io/queue-name": "training", "kueue.x-k8s.io/priority-class": "high"},
    }
    asked = {"cpu": "4", "memory": "64Mi", "ephemeral-storage": "1Gi"}
    container = {
        "name": "a",
        "image": f"{images.RUNTIME}:lab",
        "command": ["sleep", "5"],
        "resources": {"requests": asked, "limits": asked},
    }
    spec = {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
