"""The pool contract and the built-in pool."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from warpbeam.errors import PlatformError, UserError
from warpbeam.pool import LOCAL_POOL, Pool, load_pool, machine_cores, machine_memory_gib, parse_pool
from warpbeam.spec_file import parse

REPOSITORY = Path(__file__).parents[2]
GPU: dict[str, Any] = {
    "schema": "warpbeam/pool/v1",
    "name": "h100",
    "accelerator": {"kind": "H100-SXM", "memory_gib": 80},
    "nodes": 2,
    "accelerators_per_node": 8,
    "storage": {"uri": "s3://corp/warpbeam", "endpoint_url": "http://minio:9000", "region": "eu-1"},
    "env": {"NCCL_SOCKET_IFNAME": "eth0"},
    "secrets": {"hf-token": {"env": "HF_TOKEN"}},
    "price_per_accelerator_hour": 2,
}


def pool(**changes: Any) -> Pool:
    return parse_pool(copy.deepcopy(GPU) | changes)


def refused(**changes: Any) -> str:
    with pytest.raises(PlatformError) as caught:
        pool(**changes)
    return str(caught.value)


def test_the_built_in_pool_is_the_file_in_cluster_pools() -> None:
    path = REPOSITORY / "cluster/pools/local.yaml"
    assert parse(path.read_text(), name="local").data == LOCAL_POOL


def test_the_built_in_pool_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARPBEAM_POOL", raising=False)
    loaded = load_pool()
    assert loaded.path is None
    assert loaded.pool.accelerators == machine_cores()
    assert loaded.pool.accelerator.memory_gib == machine_memory_gib() > 0
    assert loaded.pool.is_cpu
    assert loaded.pool.storage_config().kind == "embedded"
    assert load_pool("local").digest == loaded.digest


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("cluster/pools/*.yaml")), ids=lambda p: p.stem)
def test_the_repositorys_pools_load(path: Path) -> None:
    assert load_pool(path).pool.name == path.stem


def test_a_pool_survives_json() -> None:
    for made in (pool(), load_pool("local").pool):
        assert parse_pool(made.to_dict()) == made


def test_ranks_and_memory() -> None:
    gpu = pool()
    assert gpu.accelerators == gpu.max_ranks == 16
    assert gpu.memory_per_rank_gib(16) == 80
    cpu = pool(accelerator={"kind": "cpu", "memory_gib": 4}, nodes=1, accelerators_per_node=2, cpus_per_worker=0.5)
    assert (cpu.accelerators, cpu.max_ranks) == (2, 4)
    assert cpu.memory_per_rank_gib(1) == 8
    assert cpu.memory_per_rank_gib(4) == 2


def test_where_things_are_stored() -> None:
    config = pool().storage_config()
    assert (config.uri, config.kind, config.endpoint_url) == ("s3://corp/warpbeam", "s3", "http://minio:9000")
    assert pool().storage_config("s3://other/prefix").endpoint_url == "http://minio:9000"
    assert pool().storage_config("file:///data/store").kind == "local"


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"accelerator": {"kind": "CPU", "memory_gib": 8}}, "write `kind: cpu`"),
        ({"accelerator": {"kind": "L4", "memory_gib": "machine"}}, "`machine` measures CPUs"),
        ({"accelerators_per_node": "machine"}, "`machine` measures CPUs"),
        ({"accelerator": {"kind": "cpu"}}, "accelerator.memory_gib: is missing"),
        ({"gpus_per_node": 8}, "write `accelerators_per_node`"),
        ({"nodes": "two"}, "nodes: must be a whole number"),
        ({"accelerators_per_node": "machin"}, "must be a whole number"),
        ({"storage": {"uri": "s3://b", "kind": "local"}}, "must be file:///ABSOLUTE/PATH for kind local"),
        ({"storage": {"uri": "s3://bucket", "endpoint_url": "minio:9000"}}, "must begin with http"),
        ({"storage": {"uri": "s3://bucket", "kind": "embedded", "endpoint_url": "http://x"}}, "has no meaning"),
        ({"secrets": {"a": {}}}, "needs either `env` or `file`"),
        ({"secrets": {"a": {"env": "A", "file": "/a"}}}, "needs either `env` or `file`"),
        ({"secrets": {"a": {"enw": "A"}}}, "did you mean `env`?"),
        ({"env": {"X": "hf_abcdefghijklmnopqrstuvw"}}, "a Hugging Face token (not shown)"),
    ],
)
def test_mistakes(changes: dict[str, Any], wrong: str) -> None:
    assert wrong in refused(**changes)


def test_a_broken_pool_file_is_the_platform_teams(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("schema: warpbeam/pool/v1\nname: x\nnods: 1\n")
    with pytest.raises(PlatformError) as caught:
        load_pool(path)
    assert caught.value.owner == "platform"
    assert f"{path}:3: nods: unknown key; did you mean `nodes`?" in caught.value.what


def test_a_pool_is_found_by_name_path_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = tmp_path / "cluster/pools"
    pools.mkdir(parents=True)
    text = (REPOSITORY / "cluster/pools/local.yaml").read_text().replace("name: local", "name: mine")
    (pools / "mine.yaml").write_text(text)
    below = tmp_path / "deep/er"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert load_pool("mine").pool.name == "mine"
    monkeypatch.setenv("WARPBEAM_POOL", "mine")
    assert load_pool().pool.name == "mine"
    monkeypatch.setenv("WARPBEAM_POOL", str(pools / "mine.yaml"))
    assert load_pool().path == pools / "mine.yaml"
    with pytest.raises(UserError, match="there is no pool `mien`") as caught:
        load_pool("mien")
    assert caught.value.fix == "did you mean `mine`?"
    with pytest.raises(UserError, match="there is no pool file at"):
        load_pool(tmp_path / "none.yaml")


def test_a_figure_in_other_units_is_refused_with_the_right_one() -> None:
    accelerator = {"kind": "H100-SXM", "memory_gib": 80, "figures": {"peak_bf16": 500, "nic_bandwidth": 50}}
    with pytest.raises(PlatformError) as refused:
        parse_pool(LOCAL_POOL | {"name": "p", "accelerator": accelerator, "accelerators_per_node": 8})
    assert "500e12" in str(refused.value)
    assert "50e9" in str(refused.value)
