"""Pools with a cluster, and what is to be rendered from them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tests.unit.launch.jobs import job as small_job
from warpbeam.job import Job
from warpbeam.kube.order import BundleRef, Kind, Order
from warpbeam.kube.render import render
from warpbeam.plan.plan import make_plan
from warpbeam.pool import Pool, parse_pool

DIGEST = "ab" * 32
IMAGE = f"registry.test/train@sha256:{DIGEST}"
KUBERNETES: dict[str, Any] = {
    "teams": {"red": {"namespace": "team-red", "quota": {"accelerators": 16, "cpus": 400, "memory_gib": 4000}}},
    "accelerator_resource": "nvidia.com/gpu",
    "node": {"cpus": 96, "memory_gib": 960},
    "node_selector": {"gpu": "h100"},
    "tolerations": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
    "credentials": {"secret": "s3"},
    "secrets": {"hf-token": {"name": "hf", "key": "token"}, "cert": {"name": "tls", "key": "ca.pem"}},
    "network": {
        "api_server": [{"cidr": "10.0.0.1/32", "ports": [6443]}],
        "store": [{"namespace": "storage", "ports": [9000]}],
        "monitoring": {"namespace": "monitoring"},
        "clients": [{"namespace": "gateway", "labels": {"app": "front"}}],
        "hub": [{"cidr": "192.0.2.0/24", "ports": [443]}],
    },
    "serve": {
        "replicas": 2,
        "token": {"name": "serve", "key": "token"},
        "redis": {
            "address": "redis.redis.svc:6379",
            "password": {"name": "redis", "key": "password"},
            "peer": {"namespace": "redis", "ports": [6379]},
        },
    },
}
POOL: dict[str, Any] = {
    "schema": "warpbeam/pool/v1",
    "name": "gpus",
    "accelerator": {"kind": "H100-SXM", "memory_gib": 80},
    "nodes": 4,
    "accelerators_per_node": 8,
    "cpus_per_worker": 4,
    "local_disk": "/scratch",
    "storage": {"uri": "s3://corp/warpbeam", "endpoint_url": "http://s3.storage.svc:9000"},
    "image": {
        "ref": IMAGE,
        "versions": {
            "python": "3.11.9",
            "ray": "2.58.0",
            "torch": "2.13.0",
            "cuda": "12.9",
            "deepspeed": "0.19.8",
            "warpbeam": "0.1.0",
        },
    },
    "secrets": {"hf-token": {"env": "HF_TOKEN"}, "cert": {"file": "/etc/ssl/corp.pem"}},
    "env": {"NCCL_SOCKET_IFNAME": "eth0"},
}
TPU = {
    "accelerator": {"kind": "TPU-v5e", "memory_gib": 16},
    "accelerators_per_node": 4,
    "kubernetes": {"accelerator_resource": "google.com/tpu", "num_of_hosts": 4, "serve": None},
}
CPU = {
    "accelerator": {"kind": "cpu", "memory_gib": 4},
    "accelerators_per_node": 8,
    "cpus_per_worker": 2,
    "kubernetes": {
        "accelerator_resource": None,
        "serve": {"accelerators_per_replica": 0, "token": {"name": "serve", "key": "token"}},
        "teams": {"red": {"namespace": "team-red"}},
    },
}


def pool(kubernetes: dict[str, Any] | None = None, **changes: Any) -> Pool:
    """A GPU pool; `kubernetes` changes keys of its section."""
    section = copy.deepcopy(KUBERNETES) | (kubernetes or {})
    return parse_pool(copy.deepcopy(POOL) | {"kubernetes": section} | changes)


def job(**changes: Any) -> Job:
    """A run of team red on 16 accelerators."""
    content = {"name": "tiny", "team": "red", "resources": {"accelerators": 16}}
    train = {"method": "sft", "max_steps": 10, "global_batch": 48, "lr": 1e-3}
    return small_job(**(content | {"train": train} | changes))


def order(
    kind: Kind = Kind.RAYJOB, *, on: Pool | None = None, of: Job | None = None, accelerators: int | None = None
) -> Order:
    """What the command line would make of a job on a pool."""
    on, of = on or pool(), of or job()
    runs = kind in (Kind.RAYJOB, Kind.RAYCRONJOB)
    return Order(
        kind=kind,
        plan=make_plan(of, on, world_size=accelerators),
        job=of,
        pool=on,
        job_digest="j" * 64,
        pool_digest="p" * 64,
        rigid=accelerators is not None,
        entrypoint="warpbeam run job.yaml --yes" if runs else "",
        bundle=BundleRef(f"s3://corp/warpbeam/teams/red/bundles/{DIGEST}.zip", DIGEST) if runs else None,
        schedule="0 3 * * *" if kind is Kind.RAYCRONJOB else "",
        model="s3://corp/warpbeam/teams/red/models/tiny/1" if kind is Kind.RAYSERVICE else "",
    )


def on(base: dict[str, Any], **kubernetes: Any) -> Pool:
    """A pool of another kind (TPU, CPU)."""
    return pool(base["kubernetes"] | kubernetes, **{key: base[key] for key in base if key != "kubernetes"})


def pod_templates(made: Order) -> Iterator[dict[str, Any]]:
    """Every pod template in what is rendered."""
    yield from _templates_below(render(made).documents)


def _templates_below(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        for inner in value.values():
            yield from _templates_below(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _templates_below(inner)
