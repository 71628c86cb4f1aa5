"""The written-out sum: its numbers are the plan's, and its products are its parts."""

from __future__ import annotations

import re

import pytest

from tests.unit.plan.setups import LLAMA_8B, question, recipe, setup
from warpbeam.plan.explain import explain_memory
from warpbeam.plan.forecast import forecast
from warpbeam.plan.memory_terms import GIB


def numbers(lines: list[str]) -> dict[str, float]:
    found = {}
    for line in lines:
        if match := re.match(r"  ([a-z ]+?)\s{2,}([\d.]+)", line):
            found[match[1]] = float(match[2])
    return found


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3"])
def test_the_lines_are_the_sum(sharding: str, checkpointing: str) -> None:
    machine = question().machine
    asked = setup(
        sharding=sharding,
        stack="hf" if sharding == "ddp" else "deepspeed",
        recipe_=recipe(checkpointing=checkpointing, micro_batch=2),
    )
    found = numbers(explain_memory(asked, machine))
    now = forecast(asked, machine)
    assert found["expected peak"] == pytest.approx(now.memory_gib, abs=0.01)
    assert found["with margin"] == pytest.approx(now.promised_gib, abs=0.01)
    assert found["available"] == pytest.approx(now.available_gib, abs=0.01)
    for name in ("parameters", "gradients", "optimizer", "activations", "communication", "fragmentation", "context"):
        assert found[name] == pytest.approx(now.memory_parts[name], abs=0.01), name


def test_the_states_can_be_followed_by_hand() -> None:
    lines = explain_memory(setup(sharding="zero3"), question().machine)
    text = next(line for line in lines if line.startswith("  parameters"))
    assert "N x 2 bytes (16-bit weights) / 16 ranks" in text
    assert float(text.split()[1]) == pytest.approx(LLAMA_8B.parameters * 2 / 16 / GIB, abs=0.01)


def test_every_stage_is_shown() -> None:
    lines = explain_memory(setup(sharding="distributed_optimizer", tp=2, stack="megatron"), question().machine)
    assert [line.split()[0] for line in lines[-4:]] == ["ddp", "zero1", "zero2", "zero3"]
    assert "gathered" in lines[-1]
    assert any("tp 2" in line for line in lines)


def test_offload_is_said() -> None:
    asked = setup(offload="cpu", offload_parameters=True)
    lines = explain_memory(asked, question().machine)
    assert any("offloaded to cpu" in line for line in lines)
    assert any(line.startswith("  host memory") for line in lines)
