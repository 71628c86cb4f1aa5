"""The first sum of memory against published numbers and common sense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from warpbeam.plan.memory import GIB, MemorySum, memory_sum
from warpbeam.plan.model_shape import model_shape

LLAMA_8B = model_shape(
    {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 14336}
)


def summed(**changes: Any) -> MemorySum:
    choice: dict[str, Any] = {
        "strategy": "zero3",
        "offload": "none",
        "precision": "bf16",
        "world_size": 8,
        "micro_batch": 1,
        "seq_len": 4096,
        "activation_checkpointing": False,
        "on_cpu": False,
        "available_gib": 80.0,
    }
    return memory_sum(LLAMA_8B, **choice | changes)


def states_gb(memory: MemorySum) -> float:
    """With gradients in 16 bits, as in the paper (we accumulate in 32)."""
    return (memory.weights_gib + memory.gradients_gib / 2 + memory.optimizer_gib) * GIB / 1e9


@pytest.mark.parametrize(("strategy", "gigabytes"), [("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)])
def test_states_as_published(strategy: str, gigabytes: float) -> None:
    """Rajbhandari et al. 2020, table 1: 7.5 billion parameters on 64 GPUs."""
    shape = replace(LLAMA_8B, parameters=7_500_000_000)
    memory = memory_sum(
        shape,
        strategy=strategy,
        offload="none",
        precision="bf16",
        world_size=64,
        micro_batch=1,
        seq_len=1,
        activation_checkpointing=False,
        on_cpu=False,
        available_gib=80,
    )
    assert states_gb(memory) == pytest.approx(gigabytes, rel=0.02)


def test_each_stage_needs_less() -> None:
    totals = [summed(strategy=strategy).total_gib for strategy in ("ddp", "zero1", "zero2", "zero3")]
    assert totals == sorted(totals, reverse=True)
    assert not summed(strategy="ddp").fits
    assert summed(strategy="zero3").fits


def test_offload_moves_states_and_loses_none() -> None:
    here, there = summed(), summed(offload="cpu")
    assert there.optimizer_gib == there.weights_gib == 0
    assert there.host_gib == pytest.approx(here.optimizer_gib + here.weights_gib)
    assert summed(offload="nvme").nvme_gib == pytest.approx(there.host_gib)
    assert there.total_gib < here.total_gib
    same = summed(offload="cpu", on_cpu=True)
    assert same.total_gib == pytest.approx(summed(on_cpu=True).total_gib), (
        "on a CPU the host's memory is the same memory"
    )


def test_activations_and_logits_grow_with_the_micro_batch_and_checkpointing_saves() -> None:
    one, four = summed(), summed(micro_batch=4)
    assert four.activations_gib == pytest.approx(4 * one.activations_gib)
    assert four.logits_gib == pytest.approx(4 * one.logits_gib)
    assert summed(activation_checkpointing=True).activations_gib < one.activations_gib / 10


def test_a_sum_survives_json() -> None:
    memory = summed()
    assert MemorySum.from_dict(memory.to_dict()) == memory
    assert memory.to_dict()["fits"] is True
