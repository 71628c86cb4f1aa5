"""A hundred nodes and eight hundred GPUs: manifests, watch and status stay quick and small. Nodes are fake."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.layout import REPOSITORY
from tests.kube.lab.nodes import remove_fake_nodes
from tests.kube.runs import Object, Run, Tell, pool_file, rendered, tenancy
from tests.kube.test_gate import on_fake_nodes

pytestmark = pytest.mark.long

NODES = 100
JOB = REPOSITORY / "cluster/examples/job/job.yaml"
REFRESH_S = 1.0
MEMORY_MB = 300
LOOK = """\
import json, resource, sys, time
from warpbeam.kube.client import Cluster
from warpbeam.kube.observe import Observer, Target, look
from warpbeam.kube.why import verdict
from dataclasses import replace
from warpbeam.kube.gang_fit import rooms

namespace, name, team = sys.argv[1:]
cluster = Cluster.connect()
target = Target(namespace, name, name, team)
looks = []
for _ in range(10):
    began = time.perf_counter()
    seen = look(cluster, target)
    nodes, pods = cluster.list("Node").items, cluster.list("Pod").items
    told = verdict(replace(seen, rooms=rooms(nodes, pods)))
    looks.append(time.perf_counter() - began)
observer = Observer(cluster, target)
observer.start(queued=False)
began = time.perf_counter()
watched = observer.wait(30)
first = time.perf_counter() - began
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
print(json.dumps({"looks": looks, "watch": first, "pods": len(watched.pods), "mb": peak_mb, "told": str(told)}))
"""


def a_large_pool(pool: Object) -> None:
    on_fake_nodes(pool)
    pool["nodes"] = NODES
    pool["kubernetes"]["teams"]["support"]["quota"] = {
        "accelerators": 900,
        "cpus": 20000,
        "memory_gib": 200000,
        "pods": 200,
    }


@pytest.fixture
def pool(lab: Laboratory, api: Api, tmp_path: Path) -> Iterator[Path]:
    path = pool_file(tmp_path, "dgx-h100", a_large_pool, namespace="team-large")
    work = tmp_path / "job"
    work.mkdir()
    (work / "job.yaml").write_text(JOB.read_text().replace("global_batch: 256", "global_batch: 1600"))
    lab.add_fake_nodes(NODES)
    with tenancy(api, rendered(work / "job.yaml", path, "--kind", "tenancy", "--accelerators", "800")):
        yield path
    remove_fake_nodes(api)


def test_eight_hundred_gpus(lab: Laboratory, api: Api, pool: Path, tell: Tell) -> None:
    began = time.monotonic()
    documents = rendered(pool.parent / "job" / "job.yaml", pool, "--accelerators", "800")
    tell(f"rendered in {time.monotonic() - began:.1f} s")
    for document in documents:
        api.apply(document)
    run = Run(api, pool.stem, documents[-1]["metadata"]["name"])
    run.let_in()
    began = time.monotonic()
    run.until("all workers", lambda run: bound(run) == NODES, 240)
    tell(f"{NODES} workers of 8 GPUs bound after {time.monotonic() - began:.0f} s")
    seen = look(lab, run, documents[-1]["metadata"]["labels"])
    slowest = max(seen["looks"])
    tell(
        f"10 refreshes of status: slowest {slowest:.2f} s; watch there after {seen['watch']:.2f} s; {seen['mb']:.0f} MB"
    )
    run.delete()
    assert seen["pods"] > NODES
    assert slowest < REFRESH_S
    assert seen["watch"] < REFRESH_S
    assert seen["mb"] < MEMORY_MB


def bound(run: Run) -> int:
    return sum("nodeName" in pod["spec"] for pod in run.pods_of("worker"))


def look(lab: Laboratory, run: Run, labels: Object) -> Object:
    """What `status` does, in a process of its own."""
    command = [sys.executable, "-c", LOOK, run.namespace, run.name, labels["warpbeam.dev/team"]]
    environment = {"KUBECONFIG": str(lab.place.outside_kubeconfig), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Object = json.loads(done.stdout)
    return found
