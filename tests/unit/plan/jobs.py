"""Jobs and pools to plan with."""

from __future__ import annotations

import copy
from typing import Any

from warpbeam.job import Job, parse_job
from warpbeam.pool import Pool, parse_pool

BASE: dict[str, Any] = {
    "schema": "warpbeam/job/v1",
    "name": "planned",
    "model": {
        "config": {"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "intermediate_size": 128},
        "tokenizer": {"train": {"vocab_size": 512}},
    },
    "data": {"train": [{"path": "data"}], "seq_len": 128},
    "train": {"method": "sft", "epochs": 1, "global_batch": 16, "lr": 1e-3},
}


def job(**changes: Any) -> Job:
    """BASE with `section__key=value` set."""
    content = copy.deepcopy(BASE)
    for dotted, value in changes.items():
        *sections, key = dotted.split("__")
        target = content
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value
    return parse_job(content)


def pool(
    kind: str = "cpu", *, memory_gib: float = 8, nodes: int = 1, per_node: int = 2, cpus_per_worker: float = 0.5
) -> Pool:
    return parse_pool(
        {
            "schema": "warpbeam/pool/v1",
            "name": "planned",
            "accelerator": {"kind": kind, "memory_gib": memory_gib},
            "nodes": nodes,
            "accelerators_per_node": per_node,
            "cpus_per_worker": cpus_per_worker,
            "storage": {"uri": "s3://bucket"},
        }
    )
