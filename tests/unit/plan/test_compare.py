"""What a changed job file means for a run that has begun."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.jobs import job
from warpbeam.job import Job
from warpbeam.plan.compare import KINDS, compare_jobs
from warpbeam.spec_problems import leaf_keys


def test_the_table_covers_every_key_once() -> None:
    leaves = leaf_keys(Job)
    for leaf in leaves:
        assert sum(leaf == key or leaf.startswith(key + ".") for key in KINDS) == 1, leaf
    for key in KINDS:
        assert any(leaf == key or leaf.startswith(key + ".") for leaf in leaves), f"{key} is no key of a job"


def test_no_change_is_no_change() -> None:
    assert compare_jobs(job(), job(parallelism="auto", train__betas=[0.9, 0.95])) == []
    written = {"parallelism__strategy": "zero3", "parallelism__offload": "none"}
    assert compare_jobs(job(), job(**written, train__activation_checkpointing=False)) == [], (
        "what it once was by default"
    )


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"checkpoint__every_steps": 5}, "harmless"),
        ({"checkpoint__keep": 5}, "harmless"),
        ({"code__callbacks": ["a:b"]}, "harmless"),
        ({"data__eval": [{"path": "x"}]}, "harmless"),
        ({"env": {"A": "1"}}, "harmless"),
        ({"parallelism__strategy": "zero1"}, "harmless"),
        ({"resources__accelerators": {"min": 1, "max": 2}}, "harmless"),
        ({"train__lr": 2e-3}, "allow"),
        ({"train__epochs": 2}, "allow"),
        ({"train__max_steps": 7}, "allow"),
        ({"train__schedule": "linear"}, "allow"),
        ({"train__clip": None}, "allow"),
        ({"train__precision": "bf16"}, "allow"),
        ({"data__seq_len": 64}, "impossible"),
        ({"data__train": [{"path": "other"}]}, "impossible"),
        ({"train__seed": 1}, "impossible"),
        ({"train__global_batch": 8}, "impossible"),
        ({"train__method": "pretrain"}, "impossible"),
        ({"model__tokenizer": {"train": {"vocab_size": 300}}}, "impossible"),
    ],
)
def test_kinds(changes: dict[str, Any], kind: str) -> None:
    (change,) = compare_jobs(job(), job(**changes))
    assert change.kind == kind
    assert change.old != change.new
    assert change.key == next(iter(changes)).replace("__", ".")
