"""A whole run in one process and one folder: real data, store, log and checkpoints; only the sink is a list."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.unit.data.arrays import Arrays
from warpbeam.checkpoint.log import RunLog
from warpbeam.checkpoint.members import this_process
from warpbeam.data.dataset import Dataset, open_dataset
from warpbeam.data.write import write_dataset
from warpbeam.job import Job, parse_job
from warpbeam.plan.plan import make_plan
from warpbeam.pool import parse_pool
from warpbeam.record.phases import PhaseClock
from warpbeam.storage import StorageConfig
from warpbeam.storage.local import LocalStore
from warpbeam.train.callbacks.base import Callbacks
from warpbeam.train.context import Context
from warpbeam.train.ranks import Ranks
from warpbeam.train.saving import Checkpoints, Identity
from warpbeam.train.setup import Setup

SEQ_LEN = 32
MODEL = {
    "model_type": "qwen2",
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
    "attention_dropout": 0.1,
}
JOB: dict[str, Any] = {
    "schema": "warpbeam/job/v1",
    "name": "made",
    "model": {"config": MODEL, "tokenizer": {"train": {"vocab_size": 320}}},
    "data": {"train": [{"path": "unused"}], "seq_len": SEQ_LEN},
    "train": {"method": "pretrain", "max_steps": 6, "global_batch": 4, "lr": 1e-2, "seed": 5},
    "parallelism": {"strategy": "ddp", "micro_batch": 2},
    "checkpoint": {"every_steps": 3},
}
POOL = {
    "schema": "warpbeam/pool/v1",
    "name": "made",
    "accelerator": {"kind": "cpu", "memory_gib": 4},
    "nodes": 1,
    "accelerators_per_node": 1,
    "storage": {"kind": "local", "uri": "file:///unused"},
}


@dataclass
class ListSink:
    """A record in memory."""

    events: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    beats: list[tuple[int, str | None]] = field(default_factory=list)
    stop_requested: dict[str, Any] | None = None

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def metrics(self, row: Mapping[str, Any]) -> None:
        self.rows.append(dict(row))

    def mark(self, phase: str, *, passes: bool = False) -> None:
        pass

    def beat(self, step: int, phase: str | None = None) -> None:
        self.beats.append((step, phase))

    def left_loop(self) -> None:
        pass

    def flush_soon(self) -> None:
        return


def job(**changes: Any) -> Job:
    """JOB with `section__key=value` set."""
    content = copy.deepcopy(JOB)
    for dotted, value in changes.items():
        *sections, key = dotted.split("__")
        target = content
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value
    return parse_job(content)


def rows_of(seed: int, count: int) -> list[Arrays]:
    """Examples of 4 to 32 tokens from a pattern that can be learned; about half of the tokens carry loss."""
    import numpy as np

    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, SEQ_LEN + 1, count)
    return [((np.arange(n) * 3 + rng.integers(0, 40)) % 300, rng.random(n) < 0.5) for n in lengths]


def data(store: LocalStore, prefix: str, seed: int, count: int) -> Dataset:
    """A prepared data set of one task."""
    if store.head(f"{prefix}/sources.json") is None:
        write_dataset(store, prefix, [rows_of(seed, count)], seq_len=SEQ_LEN)
    return open_dataset(store, prefix)


def context(
    folder: Path,
    tokenizer: Any,
    attempt: str = "0001-a",
    *,
    evaluated: bool = False,
    callbacks: Any = (),
    **changes: Any,
) -> Context:
    """A Context on the store in `folder`; the same folder again is the next attempt of the same run."""
    store = LocalStore(folder / "store")
    asked = job(**changes)
    sink, clock, ranks = ListSink(), PhaseClock(), Ranks()
    plan = make_plan(asked, parse_pool(POOL), world_size=1)
    claim = RunLog(store, asked.team, asked.name).claim(attempt, [this_process("driver")])
    identity = Identity(job_digest="", data_fingerprint="", plan={}, versions={})
    scratch = folder / "scratch"
    return Context(
        Setup(
            job=asked,
            plan=plan,
            root=folder,
            attempt=attempt,
            storage=StorageConfig(uri=(folder / "store").as_uri(), kind="local"),
            store=store,
            ranks=ranks,
            device=torch.device("cpu"),
            sink=sink,
            clock=clock,
            checkpoints=Checkpoints(
                store, claim, ranks, sink=sink, clock=clock, identity=identity, asked=asked.checkpoint, scratch=scratch
            ),
            train_data=data(store, "teams/default/data/train", 1, 80),
            eval_data=data(store, "teams/default/data/eval", 2, 13) if evaluated else None,
            tokenizer=tokenizer,
            total_steps=asked.train.max_steps or 1,
            scratch=scratch,
            callbacks=Callbacks(callbacks),
        )
    )


def sink_of(ctx: Context) -> ListSink:
    assert isinstance(ctx.record, ListSink)
    return ctx.record
