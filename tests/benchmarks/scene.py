"""What the training benchmarks share: real text, a tokenizer made from it, the quickstart's model, job files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from jobs import pydocs
from warpbeam.data.tokenizer import save_tokenizer
from warpbeam.data.tokenizer_training import train_tokenizer

VOCABULARY = 4096
SEQ_LEN = 256
WORLD = 2
MODEL: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 640,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
"""The quickstart's: 3.8M parameters."""


class Scene:
    """Makes everything below `folder`; `pool` keeps runs in plain files there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data" / "train"
        self.tokenizer = folder / "tokenizer"
        self.config = folder / "config.json"
        self.pool = folder / "pool.yaml"
        pydocs.write(folder / "data")
        texts = [
            message["content"]
            for path in sorted(self.data.glob("*.jsonl"))
            for line in path.read_text(encoding="utf-8").splitlines()
            for message in json.loads(line)["messages"]
        ]
        save_tokenizer(train_tokenizer(texts, VOCABULARY, seq_len=SEQ_LEN), self.tokenizer)
        self.config.write_text(json.dumps(MODEL))
        pool = {
            "schema": "warpbeam/pool/v1",
            "name": "bench",
            "accelerator": {"kind": "cpu", "memory_gib": "machine"},
            "nodes": 1,
            "accelerators_per_node": "machine",
            "cpus_per_worker": 0.5,
            "storage": {"kind": "local", "uri": f"file://{folder / 'store'}"},
        }
        self.pool.write_text(yaml.safe_dump(pool))

    def job(
        self,
        name: str,
        *,
        steps: int,
        rows: int,
        recipe: str | None = None,
        data: Path | None = None,
        train: Mapping[str, Any] = MappingProxyType({}),
    ) -> Path:
        """A job file of `rows` rows a rank and step, whose steps can be watched by `StepClock`'s file; `train` holds
        more of that section.
        """
        data = data or self.data
        job: dict[str, Any] = {
            "schema": "warpbeam/job/v1",
            "name": name,
            "team": "bench",
            "model": {"config": MODEL, "tokenizer": str(self.tokenizer)},
            "data": {"train": [{"path": f"{data}/*.jsonl"}], "seq_len": SEQ_LEN},
            "train": {
                "method": "sft",
                "max_steps": steps,
                "global_batch": rows * WORLD,
                "lr": 1e-3,
                "seed": 7,
                **train,
            },
            "parallelism": {"strategy": "zero3", "micro_batch": rows},
            "resources": {"accelerators": WORLD},
            "code": {"callbacks": ["tests.benchmarks.step_clock:StepClock"]},
        }
        if recipe is not None:
            job["recipe"] = recipe
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(job, sort_keys=False))
        return path
