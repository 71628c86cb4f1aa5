"""The DeepSpeed config, held by golden files.

A change that is meant: `python -m tests.unit.plan.test_deepspeed_config` writes them anew; read the diff.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warpbeam.plan.deepspeed_config import deepspeed_config

GOLDEN = Path(__file__).parent / "golden"
COMMON: dict[str, Any] = {"micro_batch": 2, "accumulation": 4, "world_size": 8, "clip": 1.0}
CASES: dict[str, dict[str, Any]] = {
    "zero1-fp32-cpu": {"stage": 1, "precision": "fp32", "on_cpu": True},
    "zero2-bf16-cpu": {"stage": 2, "precision": "bf16", "on_cpu": True},
    "zero3-fp32-cpu": {"stage": 3, "precision": "fp32", "on_cpu": True},
    "zero3-bf16-gpu": {"stage": 3, "precision": "bf16", "on_cpu": False},
    "zero2-bf16-gpu-offload-cpu": {"stage": 2, "precision": "bf16", "on_cpu": False, "offload": "cpu"},
    "zero3-bf16-gpu-offload-cpu": {"stage": 3, "precision": "bf16", "on_cpu": False, "offload": "cpu"},
    "zero3-bf16-gpu-offload-nvme": {
        "stage": 3,
        "precision": "bf16",
        "on_cpu": False,
        "offload": "nvme",
        "offload_path": "/disk/offload",
    },
    "zero3-fp32-cpu-no-clip": {"stage": 3, "precision": "fp32", "on_cpu": True, "clip": None},
}


def rendered(case: str) -> str:
    return json.dumps(deepspeed_config(**COMMON | CASES[case]), indent=2) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    assert rendered(case) == (GOLDEN / f"{case}.json").read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_deepspeeds_own_rule_of_the_batch(case: str) -> None:
    config = json.loads(rendered(case))
    product = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * COMMON["world_size"]
    assert config["train_batch_size"] == product


@pytest.mark.parametrize(("stage", "path"), [(2, "/disk"), (3, None)])
def test_nvme_needs_stage_3_and_a_path(stage: Any, path: str | None) -> None:
    with pytest.raises(ValueError, match="offload nvme needs"):
        deepspeed_config(**COMMON, stage=stage, precision="bf16", on_cpu=False, offload="nvme", offload_path=path)


if __name__ == "__main__":
    for name in CASES:
        (GOLDEN / f"{name}.json").write_text(rendered(name))
