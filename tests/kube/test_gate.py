"""`warpbeam gate` as it is deployed: its own manifests, in pods, on nodes that come by and by. Nobody is connected."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.kube.lab import images
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.layout import REPOSITORY
from tests.kube.lab.nodes import FAKE, remove_fake_nodes
from tests.kube.lab.sandbox import wait_for
from tests.kube.overlay import opened
from tests.kube.runs import RAY, Object, Run, Tell, make_room, pool_file, rename, rendered, tenancy
from warpbeam.cli.main import app
from warpbeam.kube.gate_manifests import NAME, NAMESPACE

JOB = REPOSITORY / "cluster/examples/job/job.yaml"
GPUS = "12"
"""A whole node of eight and half of another."""


def on_fake() -> Object:
    """Where pods go."""
    return {"node_selector": {"type": "kwok"}, "tolerations": [{"key": FAKE}]}


def on_fake_nodes(pool: Object) -> None:
    """All pods of a run go to the fake nodes, and nobody but the gate holds it back."""
    kubernetes = pool["kubernetes"]
    for key in ("fabric", "topology", "priority_class", "queue"):
        del kubernetes[key]
    kubernetes.update(gang="gate", node={"cpus": 96, "memory_gib": 960}, **on_fake())
    kubernetes["head"] = {"cpus": 4, "memory_gib": 16, **on_fake()}
    pool["image"]["ref"] = f"{images.RUNTIME}@{images.runtime().digest}"


@pytest.fixture
def pool(lab: Laboratory, api: Api, tmp_path: Path) -> Iterator[Path]:
    """A pool whose runs wait for the gate, and the gate."""
    path = pool_file(tmp_path, "dgx-h100", on_fake_nodes, namespace="team-gang")
    text = JOB.read_text().replace("global_batch: 256", "global_batch: 240")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.yaml").write_text(text)
    done = CliRunner().invoke(app, ["gate", "--manifests", "--pool", str(path)])
    assert done.exit_code == 0, done.output
    manifests = opened(list(yaml.safe_load_all(done.stdout)))
    with tenancy(api, rendered(tmp_path / "job" / "job.yaml", path, "--kind", "tenancy", "--accelerators", GPUS)):
        make_room(api, NAMESPACE)
        for document in manifests:
            api.apply(document)
        wait_for("the gate's pods", lambda: is_available(api), 90)
        yield path
        for left in api.list(RAY, "RayJob", path.stem):  # while their nodes are there to let them go
            Run(api, path.stem, left["metadata"]["name"]).delete()
    for document in reversed(manifests):
        api.delete(document["apiVersion"], document["kind"], NAMESPACE, document["metadata"]["name"])
    remove_fake_nodes(api)


def is_available(api: Api) -> bool:
    found = api.get("apps/v1", "Deployment", NAMESPACE, NAME) or {}
    return int(found.get("status", {}).get("availableReplicas", 0)) == 2


def gangs(api: Api, pool: Path) -> list[Run]:
    """Two alike, one after the other."""
    documents = rendered(pool.parent / "job" / "job.yaml", pool, "--accelerators", GPUS)
    (document,) = (each for each in documents if each["kind"] == "RayJob")
    found = []
    for name in ("first", "second"):
        rename(document, name)
        api.apply(document)
        found.append(Run(api, pool.stem, name))
    return found


def said(run: Run) -> str:
    """The gate's word."""
    return run.verdict().sentence


def bound(run: Run) -> int:
    """Its pods of ranks that have a node."""
    return sum("nodeName" in pod["spec"] for pod in run.pods_of("worker"))


def test_all_of_a_gang_or_nothing_and_of_two_one(lab: Laboratory, api: Api, pool: Path, tell: Tell) -> None:
    lab.add_fake_nodes(1)
    runs = gangs(api, pool)
    for run in runs:
        run.until("the gate's word", lambda run: "nvidia.com/gpu" in said(run), 30)
        tell(f"8 of {GPUS}: {said(run)}")
        assert not run.pods(), "nothing of it starts"
    began = time.monotonic()
    lab.add_fake_nodes(2)
    entered, waits = runs
    entered.until("all of the first", lambda run: bound(run) == 2, 60)
    tell(f"16: let in and bound after {time.monotonic() - began:.0f} s; the other: {said(waits)}")
    assert not waits.pods(), "of the second nothing"
    assert waits.ray_job()["spec"]["suspend"]
    entered.delete()
    waits.until("all of the second", lambda run: bound(run) == 2, 60)
    waits.delete()
