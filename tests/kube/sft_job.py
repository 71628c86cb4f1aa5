"""The SFT job of the laboratory: two ranks, ZeRO-3, one rank in a pod, one pod on a node, checkpoints in S3."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.kube.lab import images
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from warpbeam.pool import GIB
from warpbeam.storage import StorageConfig, open_store
from warpbeam.storage.embedded import ensure_server, home

Object = dict[str, Any]
NAMESPACE = "team-lab"
TEAM = "lab"
SECRET = "s3"

JOB = """\
schema: warpbeam/job/v1
name: {name}
team: lab
model:
  config: {{model_type: qwen2, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1,
    intermediate_size: 64, max_position_embeddings: 128, tie_word_embeddings: true}}
  tokenizer: {{train: {{vocab_size: 400}}}}
data:
  train: [{{path: "s3://warpbeam/lab/train.jsonl"}}]
  seq_len: 64
train: {{method: sft, max_steps: {steps}, global_batch: 4, lr: 1e-3}}
parallelism: {{strategy: zero3}}
resources: {{accelerators: 2}}
checkpoint: {{every_steps: {every_steps}, keep: 2}}
"""
PACE = """\
import time

class Pace:
    def on_step(self, ctx, row):
        time.sleep({pace_s})
"""
"""So that there is time for something to happen in the middle of a run."""


@dataclass(frozen=True)
class Shop:
    """Where the job's data and checkpoints are.

    Args:
        endpoint: of the S3 server, as pods reach it.
    """

    endpoint: str
    access_key: str
    secret_key: str


def open_shop(lab: Laboratory, s3: StorageConfig) -> Shop:
    """Let pods reach the session's S3 server, and put the data there."""
    server = ensure_server(home())
    port = int(server.endpoint_url.rpartition(":")[2])
    address = lab.let_pods_reach("s3", port)
    rows = [{"prompt": f"{n} and {n}?", "completion": f"It is {2 * n}."} for n in range(300)]
    open_store(s3).put("lab/train.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    return Shop(f"http://{address}", server.access_key, server.secret_key)


def pool(shop: Shop, **kubernetes: Any) -> Object:
    """The pool as a platform team would write it. Two of its pods do not fit into one node's memory."""
    total_gib = psutil.virtual_memory().total / GIB
    names = ("ray", "torch", "deepspeed", "warpbeam")
    versions = {name: importlib.metadata.version(name) for name in names}
    return {
        "schema": "warpbeam/pool/v1",
        "name": "lab",
        "accelerator": {"kind": "cpu", "memory_gib": 4},
        "nodes": 2,
        "accelerators_per_node": 1,
        "cpus_per_worker": 1.5,  # of a pod's two: one rank, and a task of the preparation beside it
        "local_disk": "/scratch",
        "storage": {"uri": "s3://warpbeam", "endpoint_url": shop.endpoint},
        "image": {
            "ref": f"{images.RUNTIME}@{images.runtime().digest}",
            "versions": {"python": platform.python_version(), **versions},
        },
        "env": {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        "kubernetes": {
            "teams": {TEAM: {"namespace": NAMESPACE}},
            "node": {"cpus": 2, "memory_gib": int(total_gib * 0.55)},
            "head": {"cpus": 2, "memory_gib": 3, "scratch_gib": 1},
            "scratch_gib": 1,
            "credentials": {"secret": SECRET},
            "deadlines": {"pre_running_s": 240, "active_s": 600, "save_grace_s": 30, "whole_again_s": 30},
            "retries": 0,
            **kubernetes,
        },
    }


def write_files(
    folder: Path, shop: Shop, *, name: str, steps: int, every_steps: int = 10, pace_s: float = 0, **kubernetes: Any
) -> tuple[Path, Path]:
    """(job file, pool file), the job in a folder of its own.

    Args:
        pace_s: by which each step is slowed down.
    """
    work = folder / "work"
    work.mkdir(exist_ok=True)
    job = JOB.format(name=name, steps=steps, every_steps=every_steps)
    if pace_s:
        job += 'code: {callbacks: ["pace:Pace"]}\n'
        (work / "pace.py").write_text(PACE.format(pace_s=pace_s))
    (work / "job.yaml").write_text(job)
    (folder / "pool.yaml").write_text(yaml.safe_dump(pool(shop, **kubernetes), sort_keys=False))
    return work / "job.yaml", folder / "pool.yaml"


def put_secret(api: Api, shop: Shop, namespace: str = NAMESPACE) -> None:
    """The store's keys, as the platform team gives them to a namespace."""
    data = {"AWS_ACCESS_KEY_ID": shop.access_key, "AWS_SECRET_ACCESS_KEY": shop.secret_key}
    metadata = {"name": SECRET, "namespace": namespace}
    api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
