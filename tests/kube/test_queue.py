"""RayJobs as they are rendered for Kueue, in Kueue: who waits, who is told why, who has to go. Nodes are fake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.layout import REPOSITORY
from tests.kube.lab.nodes import FAKE, GPU, remove_fake_nodes
from tests.kube.runs import KUEUE, RAY, Run, Tell, pool_file, queue_objects, rename, rendered, tenancy

Object = dict[str, Any]
JOB = REPOSITORY / "cluster/examples/job/job.yaml"
ROOM = {"cpu": "400", "memory": "4000Gi", "ephemeral-storage": "4000Gi", GPU: "16"}
"""For one run of 16 GPUs."""
FLAVOR = {
    "kind": "ResourceFlavor",
    "metadata": {"name": "fake"},
    "spec": {"nodeLabels": {"type": "kwok"}, "tolerations": [{"key": FAKE, "operator": "Exists"}]},
}


def on_fake_nodes(pool: Object) -> None:
    """Two of the fake nodes hold 16 ranks, the head finds room beside them."""
    kubernetes = pool["kubernetes"]
    for key in ("fabric", "topology", "priority_class"):
        del kubernetes[key]
    kubernetes.update(node={"cpus": 96, "memory_gib": 960}, node_selector={}, head={"cpus": 4, "memory_gib": 16})
    kubernetes["teams"]["support"]["quota"] = {"accelerators": 64, "cpus": 900, "memory_gib": 9000}


@pytest.fixture
def pool(lab: Laboratory, api: Api, with_kueue: None, tmp_path: Path) -> Iterator[Path]:
    """A pool behind a queue with room for one run."""
    path = pool_file(tmp_path, "dgx-h100", on_fake_nodes, namespace="team-in-queue")
    lab.add_fake_nodes(4)
    with tenancy(api, rendered(JOB, path, "--kind", "tenancy", "--accelerators", "16")):
        for document in queue_objects(path.stem, ROOM, FLAVOR):
            api.apply({"apiVersion": KUEUE, **document})
        yield path
        for left in api.list(RAY, "RayJob", path.stem):  # while their nodes are there to let them go
            Run(api, path.stem, left["metadata"]["name"]).delete()
        for kind, name in (("ClusterQueue", "training"), ("ResourceFlavor", "fake")):
            api.delete(KUEUE, kind, None, name)
    remove_fake_nodes(api)


def applied(api: Api, pool: Path, name: str, *, priority: str = "") -> Run:
    (document,) = (each for each in rendered(JOB, pool, "--accelerators", "16") if each["kind"] == "RayJob")
    rename(document, name)
    if priority:
        document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
    api.apply(document)
    return Run(api, pool.stem, name)


def is_let_in(run: Run) -> bool:
    """All its pods have a node."""
    pods = [pod for pod in run.pods() if "ray.io/cluster" in pod["metadata"]["labels"]]
    return len(pods) == 3 and all("nodeName" in pod["spec"] for pod in pods)


def test_one_run_waits_for_the_other_and_the_higher_goes_first(api: Api, pool: Path, tell: Tell) -> None:
    first = applied(api, pool, "first")
    first.until("all of it", is_let_in, 30)
    second = applied(api, pool, "second")
    said = second.until_told("queue", 30).sentence
    second.until("the reason", lambda run: "insufficient unused quota for nvidia.com/gpu" in run.verdict().sentence, 30)
    tell(said)
    assert not second.pods(), "nothing of it starts"
    urgent = applied(api, pool, "urgent", priority="high")
    tell(first.until_told("preempted", 60).sentence)
    urgent.until("all of it", is_let_in, 120)
    first.until("nothing is left of the first", lambda run: not run.pods(), 120)
    assert not second.pods(), "who came second still waits"
    second.delete()
    urgent.delete()
    first.until("its return", is_let_in, 120)
    first.delete()


@pytest.mark.long
def test_sixteen_wanted_eight_present_then_sixteen(api: Api, pool: Path, tell: Tell) -> None:
    resources = ("cpu", "memory", "ephemeral-storage")
    room = {**{name: ROOM[name] for name in resources}, GPU: "8"}
    for document in queue_objects(pool.stem, room, FLAVOR):
        api.apply({"apiVersion": KUEUE, **document})
    run = applied(api, pool, "sixteen")
    run.until("the reason", lambda run: f"for {GPU}" in run.verdict().sentence, 60)
    tell(f"8 present: {run.verdict().sentence}")
    assert not run.pods(), "nothing of it starts"
    for document in queue_objects(pool.stem, ROOM, FLAVOR):
        api.apply({"apiVersion": KUEUE, **document})
    run.until("all of it", is_let_in, 60)
    run.delete()


def test_the_queues_that_infra_ships_are_taken(api: Api, with_kueue: None) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-support"}}
    api.apply(namespace)
    documents = list(yaml.safe_load_all((REPOSITORY / "infra/kueue/queues.yaml").read_text()))
    assert {document["kind"] for document in documents} >= {"ResourceFlavor", "ClusterQueue", "LocalQueue"}
    for document in documents:
        api.apply(document, dry_run=True)
    api.delete("v1", "Namespace", None, "team-support")
