"""The lesson cases, and what advice says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.plan.setups import LLAMA_70B, question
from warpbeam.plan.answer import Answer, answer
from warpbeam.plan.layouts import Space, any_engine
from warpbeam.plan.model_shape import model_shape

QWEN = model_shape(
    {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14}
    | {"num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True}
)


def test_70b_needs_sharding() -> None:
    """On 32 x 80 GB: plain data parallelism holds far more than there is, each ZeRO stage less."""
    found = answer(question("32xA100-80GB", LLAMA_70B, any_engine(80)))
    assert found.chosen.fits
    stages = {stage.strategy: stage for stage in found.stages}
    assert list(stages) == ["ddp", "zero1", "zero2", "zero3"]
    needs = [stage.memory_gib for stage in stages.values()]
    assert needs == sorted(needs, reverse=True)
    assert not stages["ddp"].fits
    assert needs[0] > 10 * stages["ddp"].available_gib
    assert needs[-1] < 1.2 * stages["zero3"].available_gib


def test_a_small_model_on_a_small_gpu() -> None:
    found = answer(question("1xV100-16GB", QWEN, seq_len=512, global_batch=16))
    assert found.chosen.available_gib < 16
    assert found.chosen.fits
    assert found.chosen.runs_here
    assert found.would_fit == ()


def test_what_does_not_fit_says_what_would() -> None:
    found = answer(question("8xH100", LLAMA_70B, Space()))
    assert not found.chosen.fits
    assert found.help_most is None
    texts = [change.text for change in found.would_fit]
    assert any("`offload: cpu`" in text for text in texts)
    assert any("accelerators" in text for text in texts)
    assert any("LoRA" in text for text in texts)
    assert all(change.memory_gib < found.chosen.available_gib for change in found.would_fit)


def test_a_strategy_that_was_fixed_badly() -> None:
    """ZeRO-1 where ZeRO-3 fits: the smallest change is the next stage, not more machines."""
    space = Space(shardings=("zero1",), checkpointings=("full",))
    found = answer(question("64xA100-80GB", LLAMA_70B, space))
    assert not found.chosen.fits
    assert "`strategy: zero3`" in found.would_fit[0].text


def test_the_one_change_that_helps() -> None:
    """Recomputing without need: the advice is to stop it."""
    space = Space(shardings=("zero3",), checkpointings=("full",))
    found = answer(question("16xH200", QWEN, space, seq_len=2048, global_batch=256))
    assert found.chosen.fits
    assert found.help_most is not None
    assert found.help_most.runs_here
    assert found.help_most.gain is not None
    assert found.help_most.gain >= 0.03


def test_alternatives_are_others_and_ranked() -> None:
    found = answer(question(seq_len=8192, global_batch=128, space=any_engine(32)))
    assert len(found.alternatives) == 3
    times = [other.step_s for other in found.alternatives]
    assert times == sorted(times)
    assert found.chosen.strategy not in [other.strategy for other in found.alternatives]
    assert any(other.runs_here for other in found.alternatives)
    assert not found.chosen.runs_here
    assert found.ours is not None
    assert found.ours.runs_here


def test_parts_sum_and_survive_json() -> None:
    found = answer(question())
    for now in (found.chosen, *found.stages, *found.alternatives):
        assert sum(now.memory_parts.values()) == pytest.approx(now.memory_gib)
        assert sum(now.time_parts.values()) == pytest.approx(now.step_s)
        assert now.promised_gib == pytest.approx(now.memory_gib + now.margin_gib)
    assert Answer.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_llama_8b_on_two_nodes() -> None:
    """A tuned stack: 6.54 s a step, about 49% by 6N, for 128 sequences of 8,192 on 16 H100."""
    found = answer(question("16xH100-SXM", seq_len=8192, global_batch=128, space=any_engine(32)))
    assert found.chosen.step_s == pytest.approx(6.54, rel=0.10)
    assert found.chosen.mfu_6n == pytest.approx(0.49, rel=0.10)


def test_405b_on_16k_accelerators() -> None:
    """As published (Llama 3, table 4): TP 8, PP 16, DP 128, 2,048 sequences of 8,192: 400 TFLOP/s each, MFU 41%."""
    shape = model_shape(
        {"model_type": "llama", "vocab_size": 128256, "hidden_size": 16384, "num_hidden_layers": 126}
        | {"num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248}
    )
    space = replace(any_engine(126), tps=(8,), pps=(16,), cps=(1,))
    found = answer(question("16384xH100-SXM", shape, space, seq_len=8192, global_batch=2048))
    assert found.chosen.fits
    assert found.chosen.strategy.startswith("distributed_optimizer tp8 pp16")
    assert found.chosen.mfu_6n == pytest.approx(0.41, rel=0.10)


def test_hours_and_cost() -> None:
    now = answer(question()).chosen
    assert now.cost(100) is None
    assert now.hours(None) is None
    hours = now.hours(3600)
    assert hours == pytest.approx(now.step_s)
