"""A small job for launch tests."""

from __future__ import annotations

from typing import Any

from warpbeam.job import Job, parse_job
from warpbeam.pool import Pool, parse_pool


def job(**changes: Any) -> Job:
    content: dict[str, Any] = {
        "schema": "warpbeam/job/v1",
        "name": "tiny",
        "model": {"config": {"model_type": "qwen2", "hidden_size": 64}, "tokenizer": {"train": {"vocab_size": 300}}},
        "data": {"train": [{"path": "data.jsonl"}], "seq_len": 64},
        "train": {"method": "sft", "max_steps": 10, "global_batch": 4, "lr": 1e-3},
        "resources": {"accelerators": 2},
    }
    return parse_job(content | changes)


def pool(**changes: Any) -> Pool:
    content: dict[str, Any] = {
        "schema": "warpbeam/pool/v1",
        "name": "test",
        "accelerator": {"kind": "cpu", "memory_gib": 4},
        "nodes": 1,
        "accelerators_per_node": 2,
        "cpus_per_worker": 0.5,
        "storage": {"kind": "local", "uri": "file:///nowhere"},
    }
    return parse_pool(content | changes)
