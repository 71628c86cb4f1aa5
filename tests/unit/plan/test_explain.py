"""The written-out sum: its numbers are the plan's, and its products are its parts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.plan.setups import LLAMA_8B, question, recipe, setup
from warpbeam.plan.explain import explain_memory
from warpbeam.plan.forecast import forecast
from warpbeam.plan.memory_terms import GIB
from warpbeam.plan.model_shape import ModelShape, model_shape
from warpbeam.plan.setup import Lora

GPT2 = model_shape({"model_type": "gpt2"})


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
    assert "N / 16 ranks x 2 bytes (16-bit weights)" in text
    assert float(text.split()[1]) == pytest.approx(LLAMA_8B.parameters * 2 / 16 / GIB, abs=0.01)


def product(words: str, symbols: dict[str, float]) -> float:
    """What a printed product comes to, the words between its numbers left out."""
    words = re.sub(r"(bytes|chunks|part|K) \((?:[^()]|\([^()]*\))*\)", r"\1", words.replace("(its part)", ""))
    words = re.sub(r"[A-Za-z'][A-Za-z'-]+|;", " ", words.replace(" x ", " * ").replace(",", ""))
    return float(eval(words, {"__builtins__": {}}, symbols))


SPLITS: list[dict[str, Any]] = [
    {"sharding": "ddp", "stack": "hf"},
    {"sharding": "zero1"},
    {"sharding": "zero2"},
    {"sharding": "zero3"},
    {"sharding": "zero2", "offload": "cpu"},
    {"sharding": "fsdp", "stack": "fsdp", "tp": 2, "sequence_parallel": True},
    {"sharding": "distributed_optimizer", "stack": "megatron", "tp": 2, "pp": 4, "sequence_parallel": True},
    {"sharding": "distributed_optimizer", "stack": "megatron", "pp": 2, "virtual_stages": 2},
]
RECIPES: list[dict[str, Any]] = [
    {},
    {"checkpointing": "full"},
    {"precision": "fp32"},
    {"precision": "fp8"},
    {"eager_attention": True},
    {"optimizer": "adamw_8bit", "micro_batch": 2},
    {"lora": Lora()},
    {"lora": Lora(rank=64), "optimizer": "sgd"},
    {"lora": Lora(), "precision": "fp32"},
    {"lora": Lora(base_bits=16), "precision": "fp32"},
    {"lora": Lora(rank=8, base_bits=4), "checkpointing": "full"},
]


@pytest.mark.parametrize("how", RECIPES)
@pytest.mark.parametrize("layout", SPLITS)
@pytest.mark.parametrize("shape", [LLAMA_8B, GPT2])
def test_the_products_are_the_parts(shape: ModelShape, layout: dict[str, Any], how: dict[str, Any]) -> None:
    """Multiplied out as they are printed, the terms give what the sum says."""
    asked = setup(shape, recipe_=recipe(**{"seq_len": 1024, "global_batch": 64} | how), **layout)
    lines = explain_memory(asked, question().machine)
    symbols = {"N": float(shape.parameters)}
    for line in lines:
        if match := re.match(r"([PA]) = ([\d,]+)", line):
            symbols[match[1]] = float(match[2].replace(",", ""))
        if line.startswith("K = "):
            symbols["K"] = float(line.rsplit(" = ", 1)[1].split()[0])
            words = line.removeprefix("K = ").rsplit(" = ", 1)[0].replace("bytes x (", "bytes * (")
            assert product(words, symbols) / GIB == pytest.approx(symbols["K"], abs=0.001), line
    parts = forecast(asked, question().machine).memory_parts
    for name, part, scale in (
        ("parameters", "parameters", GIB),
        ("gradients", "gradients", GIB),
        ("optimizer", "optimizer", GIB),
        ("activations", "activations", 1),
        ("logits and loss", "logits", GIB),
    ):
        words = next(line for line in lines if line.startswith(f"  {name} "))[30:]
        if "offloaded" in words or words.startswith("none"):
            assert parts[part] < 0.3
            continue
        main, more = words, 0.0
        if "of buffers in the step" in words:
            main, _, reused = words.partition(" bytes of buffers in the step")
            more = -float(match[1]) if (match := re.match(r", less the ([\d.]+) GiB", reused)) else 0.0
        if "of the quantised base" in words:
            main, _, quantised = words.rpartition(" + ")
            more = product(quantised, {})
        value = product(main, symbols) / scale + more
        assert value == pytest.approx(parts[part], rel=0.02, abs=0.01), words


def test_which_stage_holds_the_logits_is_said() -> None:
    split = setup(sharding="distributed_optimizer", stack="megatron", pp=4)
    lines = explain_memory(split, question().machine)
    logits = next(line for line in lines if line.startswith("  logits"))
    assert "0.00  none: the fullest is the first of 4 stages" in logits


def test_labels_say_what_there_is() -> None:
    """No master weights where the weights are fp32; under autocast 16-bit copies beside them."""
    ddp = "\n".join(explain_memory(setup(sharding="ddp", stack="hf"), question().machine))
    assert "N x 6 bytes (fp32 weights 4, their 16-bit copies under autocast 2)" in ddp
    assert "x 8 bytes (two moments; the weights are their own master)" in ddp
    plain = "\n".join(explain_memory(setup(recipe_=recipe(precision="fp32")), question().machine))
    assert "(fp32 weights)" in plain
    assert "fp32 master" not in plain


def test_the_table_agrees_with_the_plan() -> None:
    """ZeRO-1 of an 8B model on 80 GB will likely run, and the table says no other."""
    asked = setup(recipe_=recipe(seq_len=8192, global_batch=128, checkpointing="full"))
    lines = explain_memory(asked, question().machine)
    assert "micro-batch 1, activations recomputed" in lines[-5]
    assert "likely" in next(line for line in lines if line.startswith("  zero1"))


def test_adapters_are_counted_on_every_linear_layer() -> None:
    """41.9 million of rank 16 for Llama-3.1-8B: rank x (inputs + outputs) of q, k, v, o, gate, up and down."""
    by_hand = 16 * 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    assert by_hand == 41_943_040
    now = forecast(setup(recipe_=recipe(lora=Lora())), question().machine)
    assert now.trained == by_hand
    assert now.checkpoint_bytes == 12 * by_hand, "the frozen base is not stored"
    assert now.memory_parts["gradients"] == pytest.approx(4 * by_hand / 16 / GIB)
    text = "\n".join(explain_memory(setup(recipe_=recipe(lora=Lora())), question().machine))
    assert "A = 41,943,040 elements of adapters" in text


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
