"""Job x pool -> plan: batch, ranks, precision, memory, and refusals with the nearest legal values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.plan.jobs import job, pool
from warpbeam.errors import UserError
from warpbeam.plan.plan import Plan, make_plan


def test_the_batch_is_shared_exactly() -> None:
    plan = make_plan(job(resources__accelerators=2), pool())
    assert (plan.world_size, plan.micro_batch, plan.accumulation) == (2, 8, 1)
    assert plan.padded_batch == plan.global_batch == 16
    assert plan.tokens_per_step == 16 * 128
    assert plan.legal_world_sizes == (1, 2, 4)
    assert plan.warnings == ()
    assert plan.deepspeed is not None
    assert plan.deepspeed["train_batch_size"] == 16
    assert plan.deepspeed["zero_optimization"]["stage"] == 3


def test_a_plan_is_pure_and_survives_json() -> None:
    for changes in ({}, {"parallelism__strategy": "ddp"}, {"model": {"path": "hf://a/b"}}):
        plan = make_plan(job(**changes), pool())
        assert plan == make_plan(job(**changes), pool())
        assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_precision_follows_the_hardware() -> None:
    assert make_plan(job(), pool()).precision == "fp32"
    assert make_plan(job(), pool("H100-SXM", memory_gib=80)).precision == "bf16"
    assert make_plan(job(train__precision="fp32"), pool("H100-SXM")).precision == "fp32"
    slow = make_plan(job(train__precision="bf16"), pool())
    assert slow.precision == "bf16"
    assert "bf16" in slow.warnings[0]
    assert "V100-SXM-32GB has no bf16 units" in make_plan(job(), pool("V100-32GB", memory_gib=32)).warnings[0]


def test_rows_longer_than_the_model_s_positions() -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    with pytest.raises(UserError, match=r"data\.seq_len 128 is longer than the 64 positions") as caught:
        make_plan(job(model__config=config), pool())
    assert "seq_len: 64" in caught.value.fix
    assert make_plan(job(model__config=config | {"n_positions": 128}), pool()).warnings == ()
    rotary = job().model.config
    assert rotary is not None
    plan = make_plan(job(model__config=rotary | {"max_position_embeddings": 64}), pool())
    assert "seq_len 128 is longer than the model's max_position_embeddings (64)" in plan.warnings


def test_the_launchers_world_size_wins() -> None:
    sixteen = job(resources__accelerators=16)
    assert make_plan(sixteen, pool(), world_size=2).world_size == 2


def test_cpu_ranks_may_share_cores_with_a_warning() -> None:
    plan = make_plan(job(resources__accelerators=4), pool())
    assert plan.world_size == 4
    assert "4 ranks share 2 CPU cores" in plan.warnings[0]


@pytest.mark.parametrize(
    ("changes", "there", "wrong", "fix"),
    [
        (
            {"resources__accelerators": 8},
            pool(),
            "asks for 8, the pool `planned` has 4",
            "write `accelerators: 4` or less",
        ),
        (
            {"resources__accelerators": 32},
            pool("H100-SXM", nodes=2, per_node=8),
            "asks for 32, the pool `planned` has 16",
            "write `accelerators: 16` or less",
        ),
        ({"resources__accelerators": {"min": 5, "max": 9}}, pool(), "asks for 5, the pool", "write `accelerators: 4`"),
        (
            {"resources__accelerators": 3},
            pool(),
            "16 does not divide by 3 ranks",
            "`global_batch: 15` or `global_batch: 18`",
        ),
        ({"resources__accelerators": 3}, pool(), "16 does not divide", "use 1 or 2 or 4 accelerators"),
        (
            {"resources__accelerators": {"min": 3, "max": 3}},
            pool(),
            "does not divide by 3 ranks",
            "`global_batch: 15` or `global_batch: 18`",
        ),
        (
            {"resources__accelerators": 2, "parallelism__micro_batch": 3},
            pool(),
            "does not divide by 2 ranks x micro_batch 3 = 6",
            "`global_batch: 12` or `global_batch: 18`, or `micro_batch: 2` or `micro_batch: 4`",
        ),
        (
            {"train__global_batch": 1, "resources__accelerators": 2},
            pool(),
            "1 does not divide by 2",
            "`global_batch: 2`",
        ),
    ],
)
def test_refusals_name_the_nearest_legal_values(changes: dict[str, Any], there: Any, wrong: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        make_plan(job(**changes), there)
    assert wrong in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.exit_code == 2


def test_a_launchers_size_that_does_not_divide_is_refused_unless_elastic() -> None:
    with pytest.raises(UserError, match="does not divide by 3"):
        make_plan(job(), pool(), world_size=3)
    plan = make_plan(job(), pool(), world_size=3, elastic=True)
    assert plan.padded_batch >= 16
    assert plan.padded_batch - 16 < 3 * plan.accumulation, "no more padding than the ranks force"
    fixed = make_plan(job(parallelism__micro_batch=4), pool(), world_size=3, elastic=True)
    assert (fixed.micro_batch, fixed.accumulation) == (4, 2)


def test_a_range_takes_the_most_that_divides() -> None:
    there = pool("H100-SXM", nodes=2, per_node=8)
    assert make_plan(job(train__global_batch=12, resources__accelerators={"min": 2, "max": 8}), there).world_size == 6
    assert make_plan(job(resources__accelerators={"min": 8, "max": 64}), there).world_size == 16


def test_a_micro_batch_is_chosen_to_fit() -> None:
    long_rows = {"data__seq_len": 8192, "train__global_batch": 64}
    assert make_plan(job(**long_rows), pool("H100-SXM", memory_gib=80)).micro_batch == 8, "65k tokens are enough"
    big = {
        "model_type": "llama",
        "vocab_size": 128256,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
    }
    as_asked = {"parallelism__strategy": "zero3", "train__activation_checkpointing": True}
    loaded = job(model={"path": "hf://meta/llama"}, data__seq_len=2048, train__global_batch=64, **as_asked)
    there = pool("H100-SXM", memory_gib=80, nodes=8, per_node=8)
    roomy = make_plan(loaded, there, world_size=8, model_config=big)
    tight = make_plan(loaded, pool("A100-40GB", memory_gib=40, nodes=8, per_node=8), world_size=8, model_config=big)
    assert roomy.micro_batch > tight.micro_batch
    assert roomy.memory is not None
    assert roomy.memory.fits
    one = make_plan(loaded, there, world_size=1, model_config=big)
    assert one.micro_batch == 1
    assert "will run out of memory" in one.warnings[0]


def test_what_is_not_known_is_said() -> None:
    unread = make_plan(job(model={"path": "hf://a/b"}), pool())
    assert unread.parameters is None
    assert unread.memory is None
    assert unread.warnings == ()
    unknown = make_plan(job(model={"path": "hf://a/b"}), pool(), model_config={"model_type": "mamba"})
    assert "does not know the model family 'mamba'" in unknown.warnings[0]


def test_a_model_from_scratch_has_its_tokenizers_vocabulary() -> None:
    small, large = (
        make_plan(job(model__tokenizer={"train": {"vocab_size": v}}), pool()).parameters for v in (512, 1024)
    )
    assert small is not None
    assert large is not None
    assert large - small == 512 * 64 * 2


def test_strategies() -> None:
    assert make_plan(job(parallelism__strategy="ddp"), pool()).deepspeed is None
    nvme = make_plan(job(parallelism={"strategy": "zero3", "offload": "nvme"}), pool("H100-SXM")).deepspeed
    assert nvme is not None
    assert nvme["zero_optimization"]["offload_param"] == {
        "device": "nvme",
        "pin_memory": True,
        "nvme_path": "/tmp/warpbeam/offload",
    }
