"""The step's time: sums, directions, formulas and the published figures that must come out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.plan.hardware import CHIPS, Chip, find_chip
from warpbeam.plan.layer_time import layer_time
from warpbeam.plan.memory import memory
from warpbeam.plan.model_shape import ModelShape, model_shape
from warpbeam.plan.rank_share import rank_share
from warpbeam.plan.setup import Layout, Lora, Precision, Recipe, Setup
from warpbeam.plan.step_time import bubble_fraction, step_time
from warpbeam.plan.time_coefficients import COEFFICIENTS


def llama(hidden: int, layers: int, heads: int, ffn: int) -> ModelShape:
    return model_shape(
        {
            "model_type": "llama",
            "vocab_size": 128_256,
            "hidden_size": hidden,
            "intermediate_size": ffn,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
        }
    )


LLAMA_8B = llama(4096, 32, 32, 14_336)
LLAMA_405B = llama(16_384, 126, 128, 53_248)
H100 = find_chip("H100")
MEGATRON: dict[str, Any] = {"sharding": "distributed_optimizer", "stack": "megatron"}


def setup(shape: ModelShape = LLAMA_8B, accelerators: int = 16, **values: Any) -> Setup:
    """16 H100, ZeRO-3 with DeepSpeed, 128 sequences of 8,192, unless said otherwise."""
    recipe = {key: values.pop(key) for key in list(values) if key in Recipe.__dataclass_fields__}
    layout = {"per_node": min(accelerators, 8), "sharding": "zero3"} | values
    return Setup(
        shape=shape,
        layout=Layout(accelerators=accelerators, **layout),
        recipe=Recipe(**({"seq_len": 8192, "micro_batch": 1, "global_batch": 128} | recipe)),
    )


layouts = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "pp": st.sampled_from([1, 2, 4]),
        "cp": st.sampled_from([1, 2]),
        "virtual_stages": st.sampled_from([1, 2]),
        "sharding": st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp", "distributed_optimizer"]),
        "stack": st.sampled_from(["deepspeed", "fsdp", "megatron", "maxtext", "hf", "nanotron"]),
        "checkpointing": st.sampled_from(["none", "selective", "full"]),
        "precision": st.sampled_from(["fp32", "fp16", "bf16", "fp8"]),
        "eager_attention": st.booleans(),
        "offload": st.sampled_from(["none", "cpu", "nvme"]),
        "optimizer": st.sampled_from(["adamw", "adamw_8bit", "sgd", "adafactor", "muon"]),
        "lora": st.sampled_from([None, Lora(), Lora(base_bits=4)]),
        "micro_batch": st.sampled_from([1, 2]),
    }
)


@given(layouts, st.sampled_from([64, 128, 512]), st.sampled_from(CHIPS))
def test_parts_are_never_negative_and_sum_to_the_step(values: dict[str, Any], accelerators: int, chip: Chip) -> None:
    found = step_time(setup(accelerators=accelerators, **values), chip)
    assert min(found.parts().values()) >= 0
    assert sum(found.parts().values()) == pytest.approx(found.step_s)
    assert found.tokens_per_s_per_accelerator * accelerators == pytest.approx(found.tokens / found.step_s)
    assert 0 < found.mfu_6n < found.mfu_full < 1.1  # without the causal discount attention may count twice


@given(layouts, st.sampled_from([64, 128, 256]))
def test_more_accelerators_never_compute_longer(values: dict[str, Any], accelerators: int) -> None:
    fewer = step_time(setup(accelerators=accelerators, global_batch=1024, **values), H100)
    more = step_time(setup(accelerators=2 * accelerators, global_batch=1024, **values), H100)
    assert more.tokens == fewer.tokens
    assert more.compute_s <= fewer.compute_s * (1 + 1e-9)


@given(layouts)
def test_the_step_grows_with_the_batch(values: dict[str, Any]) -> None:
    small = step_time(setup(accelerators=64, global_batch=128, **values), H100)
    large = step_time(setup(accelerators=64, global_batch=256, **values), H100)
    assert large.step_s > small.step_s
    assert large.tokens_per_s >= small.tokens_per_s * (1 - 1e-9)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "chunks", "idle"),
    [(4, 8, 1, 3 / 8), (4, 8, 2, 3 / 16), (1, 8, 1, 0), (16, 16, 1, 15 / 16)],
)
def test_bubble(stages: int, micro_batches: int, chunks: int, idle: float) -> None:
    assert bubble_fraction(stages, micro_batches, chunks) == idle


def test_the_steps_bubble_follows_the_formula() -> None:
    headless = replace(LLAMA_8B, vocab_size=1)  # else the last stage is slower than the others, and they wait for it
    coefficients = dict(COEFFICIENTS) | {"stack.megatron": 1.0}
    for chunks in (1, 2, 4):
        found = step_time(setup(headless, pp=4, virtual_stages=chunks, micro_batch=2, **MEGATRON), H100, coefficients)
        m = 128 // 4 // 2
        assert found.bubble_s / found.compute_s == pytest.approx(bubble_fraction(4, m, chunks), rel=0.02)


def test_one_accelerator_talks_to_nobody() -> None:
    found = step_time(setup(accelerators=1, per_node=1, sharding="ddp"), H100)
    assert found.communication_s == found.bubble_s == found.offload_s == 0


def test_recompute_is_about_a_forward() -> None:
    none, selective, full = (
        step_time(setup(checkpointing=mode, **MEGATRON), H100) for mode in ("none", "selective", "full")
    )
    assert none.recompute_s == 0 < selective.recompute_s < full.recompute_s
    assert full.recompute_s / full.compute_s == pytest.approx(1 / 3, abs=0.06)


def test_adapters_spare_the_weights_gradients() -> None:
    full, lora, qlora = (step_time(setup(lora=own, stack="hf"), H100) for own in (None, Lora(), Lora(base_bits=4)))
    assert lora.compute_s < full.compute_s
    assert lora.compute_s < qlora.compute_s
    assert lora.flops_6n == pytest.approx(full.flops_6n * 2 / 3)


def test_offload_costs_time() -> None:
    kept, host, disk = (step_time(setup(offload=where), H100) for where in ("none", "cpu", "nvme"))
    assert kept.step_s < host.step_s < disk.step_s
    assert kept.offload_s == 0 == host.optimizer_s


def test_the_network_between_nodes_is_felt() -> None:
    slow = replace(H100, nic_bandwidth=H100.nic_bandwidth / 50)
    assert step_time(setup(), slow).data_s > step_time(setup(), H100).data_s
    assert step_time(setup(accelerators=8), slow).step_s == step_time(setup(accelerators=8), H100).step_s


def test_experts_far_away_cost_more() -> None:
    mixtral = model_shape({"model_type": "mixtral", "max_position_embeddings": 32_768})
    near = step_time(setup(mixtral, 64, ep=8, **MEGATRON), H100)
    far = step_time(setup(mixtral, 64, ep=64, **MEGATRON), H100)
    alone = step_time(setup(mixtral, 64, **MEGATRON), H100)
    assert alone.expert_s == 0 < near.expert_s < far.expert_s
    assert near.flops_6n == pytest.approx(6 * mixtral.active_parameters * near.tokens)


def test_a_lower_power_limit_is_felt() -> None:
    limited = step_time(setup(), replace(H100, power_w=350))
    assert limited.compute_s > step_time(setup(), H100).compute_s


def test_context_parallelism_hides_behind_attention() -> None:
    """The ring costs little where the sequence is long."""
    alone = step_time(setup(global_batch=16, seq_len=131_072, **MEGATRON), H100)
    split = step_time(setup(global_batch=16, seq_len=131_072, cp=2, **MEGATRON), H100)
    assert split.tokens == alone.tokens
    assert 0 < split.context_s < 0.05 * split.step_s


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_every_chip_has_its_efficiencies(chip: Chip, precision: Precision) -> None:
    found = step_time(setup(precision=precision), chip)
    assert 0.01 < found.mfu_6n < 0.95


def test_coefficients_are_physical() -> None:
    assert all(value > 0 for value in COEFFICIENTS.values())
    shares = [value for name, value in COEFFICIENTS.items() if name.startswith(("link.", "exposed.", "hidden."))]
    assert max(shares) <= 1


def test_llama_8b_on_two_nodes_of_h100() -> None:
    """128 sequences of 8,192: 6.54 s a step and 49% by 6N on a tuned stack."""
    tuned = step_time(setup(cp=2, **MEGATRON), H100)
    assert tuned.step_s == pytest.approx(6.54, rel=0.1)
    assert tuned.mfu_6n == pytest.approx(0.49, rel=0.1)
    deepspeed = step_time(setup(checkpointing="full"), H100)
    assert deepspeed.step_s > tuned.step_s, "ZeRO-3 as what it is"


@pytest.mark.parametrize(("accelerators", "published"), [(8192, 0.43), (16_384, 0.41)])
def test_llama_405b_as_published(accelerators: int, published: float) -> None:
    """The Llama 3 report, table 4: TP 8, PP 16, 16 Mi tokens a step; an interleaved schedule."""
    layout = {"tp": 8, "pp": 16, "virtual_stages": 8, "sequence_parallel": True} | MEGATRON
    found = step_time(setup(LLAMA_405B, accelerators, global_batch=2048, **layout), H100)
    assert found.mfu_6n == pytest.approx(published, rel=0.12)


@pytest.mark.parametrize("window", [512, 4096, 16_384])
def test_a_window_takes_time_from_attention_alone(window: int) -> None:
    """The flash kernel scores s w - w^2 / 2 pairs instead of s^2 / 2; without one the whole matrix is computed."""
    seq_len = 16_384

    def attention(shape: Any, **how: Any) -> float:
        asked = setup(shape, seq_len=seq_len, **how)
        return layer_time(asked, rank_share(asked), find_chip("H100"), COEFFICIENTS).attention

    windowed = replace(LLAMA_8B, window=window, windowed_layers=LLAMA_8B.layers)
    share = (seq_len * window - window**2 / 2) / (seq_len**2 / 2)
    assert attention(windowed) == pytest.approx(share * attention(LLAMA_8B))
    assert attention(replace(windowed, windowed_layers=16)) == pytest.approx((1 + share) / 2 * attention(LLAMA_8B))
    assert attention(windowed, eager_attention=True) == attention(LLAMA_8B, eager_attention=True)
    eager = setup(windowed, seq_len=seq_len, eager_attention=True)
    assert memory(eager, 80) == memory(replace(eager, shape=LLAMA_8B), 80)


@pytest.mark.parametrize(("card", "precision"), [("H20", "bf16"), ("H100", "fp32"), ("V100", "bf16")])
def test_no_step_is_better_than_any_that_was_measured(card: str, precision: Precision) -> None:
    chip = find_chip(card)
    recipe = Recipe(seq_len=4096, micro_batch=4, global_batch=256, precision=precision)
    layout = Layout(accelerators=8, per_node=8, sharding="zero3", stack="megatron")
    time = step_time(Setup(shape=LLAMA_8B, layout=layout, recipe=recipe), chip)
    assert 0.3 < time.mfu_full <= 0.75
    assert time.step_s == pytest.approx(sum(time.parts().values()))
