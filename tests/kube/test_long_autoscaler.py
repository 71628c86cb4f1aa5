"""Ray's autoscaler asks Kubernetes for workers with accelerators, from none and back; what a pool lacks is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from tests.kube import sft_job
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.nodes import GPU
from tests.kube.lab.sandbox import wait_for
from tests.kube.overlay import opened
from tests.kube.runs import RAY, Object, Tell, rendered, tenancy
from tests.kube.test_long_faults import kubectl
from warpbeam.errors import WarpbeamError

pytestmark = pytest.mark.long

IDLE_S = 20
ASK = """\
import ray, time
ray.init(address="auto", log_to_driver=False)

@ray.remote(num_gpus=8, num_cpus=0)
def hold():
    time.sleep(5)
    return ray.get_runtime_context().get_node_id()

print("nodes", len(set(ray.get([hold.remote(), hold.remote()]))))
"""
TOO_MUCH = """\
import ray, time
from ray.util import placement_group
from warpbeam.launch.ray_room import waiting_for
ray.init(address="auto", log_to_driver=False)
placement_group([{"GPU": 8}] * 4)
time.sleep(1)
print(waiting_for({"GPU": 32}))
"""


def with_gpus(folder: Path, shop: sft_job.Shop) -> tuple[Path, Path]:
    """The laboratory's nodes as nodes of eight GPUs, for an elastic job."""
    job, pool = sft_job.write_files(folder, shop, name="elastic", steps=10)
    text = job.read_text().replace("accelerators: 2", "accelerators: {min: 8, max: 16}")
    job.write_text(text.replace("global_batch: 4", "global_batch: 32"))
    content = yaml.safe_load(pool.read_text())
    content.update(accelerator={"kind": "H100-SXM", "memory_gib": 80}, nodes=2, accelerators_per_node=8)
    content["cpus_per_worker"] = 0.1
    content["image"]["versions"]["cuda"] = "13.0"
    content["kubernetes"]["accelerator_resource"] = GPU
    pool.write_text(yaml.safe_dump(content, sort_keys=False))
    return job, pool


def test_workers_come_and_go(lab: Laboratory, api: Api, tmp_path: Path, tell: Tell) -> None:
    shop = sft_job.Shop(endpoint="http://10.88.0.1:9", access_key="a", secret_key="b")
    job, pool = with_gpus(tmp_path, shop)
    with pytest.raises(WarpbeamError) as refused:
        rendered(job, pool, "--kind", "raycluster", "--accelerators", "32")
    tell(f"32 of 16: {refused.value.what}")
    assert "16" in refused.value.what
    with tenancy(api, opened(rendered(job, pool, "--kind", "tenancy"))) as namespace:
        sft_job.put_secret(api, shop)
        documents = rendered(job, pool, "--kind", "raycluster")
        cluster = documents[-1]
        cluster["spec"]["suspend"] = False
        (group,) = cluster["spec"]["workerGroupSpecs"]
        group.update(replicas=0, minReplicas=0, idleTimeoutSeconds=IDLE_S)
        for document in documents:
            api.apply(document)
        name = cluster["metadata"]["name"]
        wait_for("the head", lambda: is_ready(api, namespace, name, "head") == 1, 180)
        assert not pods(api, namespace, name, "worker"), "none is there before somebody asks"
        (head,) = pods(api, namespace, name, "head")
        began = time.monotonic()
        said = in_head(lab, namespace, head, ASK)
        tell(f"two tasks of eight GPUs were done after {time.monotonic() - began:.0f} s ({said.strip()})")
        assert "nodes 2" in said
        began = time.monotonic()
        wait_for("the workers' end", lambda: not pods(api, namespace, name, "worker"), 180)
        tell(f"none is left {time.monotonic() - began:.0f} s later (idle timeout {IDLE_S} s)")
        said = in_head(lab, namespace, head, TOO_MUCH)
        tell(f"32 GPUs in Ray itself: {said.strip()}")
        assert "32 GPU" in said
        api.delete(RAY, "RayCluster", namespace, name)


def pods(api: Api, namespace: str, cluster: str, kind: str) -> list[Object]:
    return api.list("v1", "Pod", namespace, f"ray.io/cluster={cluster},ray.io/node-type={kind}")


def is_ready(api: Api, namespace: str, cluster: str, kind: str) -> int:
    return sum(
        condition["type"] == "Ready" and condition["status"] == "True"
        for pod in pods(api, namespace, cluster, kind)
        for condition in pod["status"].get("conditions", [])
    )


def in_head(lab: Laboratory, namespace: str, head: Object, code: str) -> str:
    """What a program in the head's container prints."""
    where = ("exec", "--namespace", namespace, head["metadata"]["name"], "--container", "ray-head", "--")
    return kubectl(lab, *where, "python", "-c", code)
