from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from warpbeam.errors import UserError
from warpbeam.pool import load_pool
from warpbeam.preflight.render import HOSTNAME, rendered

POOLS = "cluster/pools"


def documents(text: str) -> dict[str, Any]:
    found = YAML(typ="safe").load_all(text)
    return {document["kind"]: document for document in found}


def test_the_pods_are_those_of_a_job_of_that_size() -> None:
    loaded = load_pool(f"{POOLS}/dgx-h100.yaml")
    job = documents(rendered(loaded, 16, "warpbeam preflight --address auto", team=None, node=None).text)["RayJob"]
    assert job["spec"]["entrypoint"] == "warpbeam preflight --address auto"
    assert job["metadata"]["namespace"] == "team-support"
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    container = group["template"]["spec"]["containers"][0]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"]) * group["replicas"]
    assert gpus == 16
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["NCCL_IB_HCA"], env["NCCL_SOCKET_IFNAME"]) == ("mlx5", "eth0")
    assert container["image"] == loaded.pool.image.ref if loaded.pool.image else False
    assert "runtimeEnvYAML" not in job["spec"], "no folder travels"


def test_one_node_is_chosen_by_its_name() -> None:
    loaded = load_pool(f"{POOLS}/dgx-h100.yaml")
    job = documents(rendered(loaded, 8, "warpbeam preflight", team="support", node="gpu-7").text)["RayJob"]
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["template"]["spec"]["nodeSelector"][HOSTNAME] == "gpu-7"
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert HOSTNAME not in head.get("nodeSelector", {})


def test_a_pool_of_several_teams_wants_one_named() -> None:
    from dataclasses import replace

    from warpbeam.pool import parse_pool

    loaded = load_pool(f"{POOLS}/dgx-h100.yaml")
    content = loaded.pool.to_dict()
    content["kubernetes"]["teams"]["other"] = {"namespace": "team-other"}
    with pytest.raises(UserError, match="several teams"):
        rendered(replace(loaded, pool=parse_pool(content)), 8, "warpbeam preflight", team=None, node=None)
