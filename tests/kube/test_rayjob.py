"""The SFT job as a RayJob in pods on two nodes, from `warpbeam render` to Complete, with checkpoints in S3."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tests.kube import sft_job
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.overlay import open_namespace, with_this_python
from tests.kube.runs import Run, rendered, tenancy
from warpbeam.checkpoint.verify import verify
from warpbeam.record.states import RunState
from warpbeam.record.stop import members
from warpbeam.record.view import RunView
from warpbeam.storage import StorageConfig, open_store

STEPS = 20
NAME = "sft-pods"


def upload(lab: Laboratory, shop: sft_job.Shop, job: Path, pool: Path, out: Path) -> None:
    """The user's command, from where the cluster's store can be reached."""
    keys = {"AWS_ACCESS_KEY_ID": shop.access_key, "AWS_SECRET_ACCESS_KEY": shop.secret_key}
    warpbeam = Path(sys.executable).with_name("warpbeam")
    command = [warpbeam, "render", job, "--pool", pool, "--working-dir", job.parent, "--upload", "--out", out]
    done = subprocess.run(
        lab.sandbox.command(*command), env={**os.environ, **keys}, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rayjob_trains_in_pods_to_complete(lab: Laboratory, api: Api, s3: StorageConfig, tmp_path: Path) -> None:
    shop = sft_job.open_shop(lab, s3)
    job, pool = sft_job.write_files(tmp_path, shop, name=NAME, steps=STEPS)
    documents = rendered(job, pool, "--kind", "tenancy")
    opened = [open_namespace(each) if each["kind"] == "Namespace" else each for each in documents]
    upload(lab, shop, job, pool, tmp_path / "run.yaml")
    manifests = list(yaml.safe_load_all((tmp_path / "run.yaml").read_text()))
    with tenancy(api, opened) as namespace:
        sft_job.put_secret(api, shop)
        run = Run(api, namespace, NAME)
        began = time.monotonic()
        for document in manifests:
            api.apply(with_this_python(document))
        run.until("the operator's look at it", lambda run: run.status() == "Suspended", 30)
        assert not run.pods(), "nothing starts before it is let in"
        run.let_in()
        run.until("both pods of ranks", lambda run: len(placed(run)) == 2, 60)
        run.until("the training", lambda run: run.status() == "Running", 180)
        training_s = time.monotonic() - began
        assert set(placed(run)) == {"node1", "node2"}, "one pod on each node"
        try:
            run.until("its end", lambda run: run.status() in ("Complete", "Failed"), 300)
        finally:
            print(f"apply -> job running {training_s:.0f} s -> {run.status()} {time.monotonic() - began:.0f} s")
        assert run.status() == "Complete", run.verdict()
        assert run.verdict().state is RunState.DONE
        ended = time.monotonic()
        run.until("the end of its pods", lambda run: not [p for p in run.pods() if is_of_cluster(p)], 90)
        print(f"Complete -> nothing is held any more {time.monotonic() - ended:.0f} s")
    view = RunView(open_store(s3), sft_job.TEAM, NAME)
    assert view.state() == (RunState.DONE, "")
    status = view.status()
    assert (status.step, status.committed_step, status.attempts) == (STEPS, STEPS, 1)
    hosts = {member.host for member in members(view, view.attempts()[0]) if member.role != "driver"}
    assert len(hosts) == 2, "each rank in a pod of its own"
    found = verify(view.store, sft_job.TEAM, NAME, STEPS)
    assert found.ok, found.faults


def placed(run: Run) -> list[str]:
    """The nodes of the ranks' pods."""
    pods = [pod for pod in run.pods() if pod["metadata"]["labels"].get("ray.io/node-type") == "worker"]
    return sorted(node for pod in pods if (node := pod["spec"].get("nodeName")))


def is_of_cluster(pod: dict[str, dict[str, dict[str, str]]]) -> bool:
    """Head or worker; the submitter's pod stays to be read."""
    return "ray.io/cluster" in pod["metadata"]["labels"]
