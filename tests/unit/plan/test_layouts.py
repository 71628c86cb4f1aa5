"""Which layouts are legal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plan.setups import LLAMA_8B, LLAMA_70B, recipe, setup
from warpbeam.errors import UserError
from warpbeam.plan.given_shape import given_shape
from warpbeam.plan.layouts import Space, any_engine, check_setup, even_stages, families, runs_here
from warpbeam.plan.setup import Lora


@pytest.mark.parametrize(
    ("layout", "batch", "what"),
    [
        ({"tp": 3}, 256, "tp 3 x pp 1 x cp 1 = 3 does not divide 16"),
        ({"tp": 16, "pp": 2}, 256, "= 32 does not divide 16 accelerators"),
        ({"pp": 16, "accelerators": 48, "tp": 3}, 256, "32 heads cannot be split by tp 3"),
        ({"pp": 5, "accelerators": 15}, 256, "32 layers cannot be split by pp 5"),
        ({"cp": 3, "accelerators": 3}, 256, "4096 tokens of a sequence cannot be split by cp 3"),
        ({}, 24, "global batch 24 does not divide by dp 16"),
        ({"tp": 16}, 256, "tp 16 goes beyond the 8 accelerators"),
    ],
)
def test_what_cannot_be_is_refused(layout: dict[str, Any], batch: int, what: str) -> None:
    with pytest.raises(UserError) as caught:
        check_setup(setup(recipe_=recipe(global_batch=batch), **layout), link_domain=8)
    assert what in caught.value.what
    assert caught.value.exit_code == 2


def test_tensor_parallelism_over_the_network_can_be_allowed() -> None:
    wide = setup(tp=16, recipe_=recipe(global_batch=256))
    check_setup(wide, link_domain=8, allow=["tp_across_nodes"])
    with pytest.raises(UserError, match="linked to each other"):
        check_setup(wide, link_domain=8)


def test_key_value_heads_and_experts() -> None:
    odd = given_shape({"layers": 4, "hidden": 96, "heads": 12, "kv_heads": 3, "ffn": 64, "vocab": 100})
    with pytest.raises(UserError, match="3 key-value heads cannot be split by tp 2"):
        check_setup(setup(odd, tp=2), link_domain=8)
    experts = given_shape({"layers": 4, "hidden": 96, "heads": 12, "ffn": 64, "vocab": 100, "experts": 6})
    with pytest.raises(UserError, match="6 experts cannot be split by ep 4"):
        check_setup(setup(experts, ep=4), link_domain=8)


def test_stages_count_the_ends_as_layers() -> None:
    assert even_stages(126, 16), "Llama 3.1 405B: 126 layers, the embedding and the head on 16 stages"
    assert even_stages(80, 8)
    assert not even_stages(80, 7)


def test_what_this_version_runs() -> None:
    assert runs_here(setup(sharding="zero2"))
    assert runs_here(setup(sharding="ddp", stack="hf"))
    assert not runs_here(setup(sharding="fsdp", stack="fsdp"))
    assert not runs_here(setup(tp=2))
    assert not runs_here(setup(recipe_=recipe(lora=Lora())))
    assert not runs_here(setup(recipe_=recipe(precision="fp8")))
    assert not runs_here(setup(recipe_=recipe(optimizer="muon")))


def test_offload_goes_with_zero() -> None:
    """ZeRO-1 and -2 keep states in host memory; only ZeRO-3 on a disk; nothing is dropped in silence."""
    kept = {
        offload: {
            group[0].layout.sharding
            for group in families(LLAMA_8B, 16, 8, 8, recipe(), replace(any_engine(32), offloads=(offload,)))
        }
        for offload in ("cpu", "nvme")
    }
    assert kept == {"cpu": {"zero1", "zero2", "zero3"}, "nvme": {"zero3"}}


@given(
    accelerators=st.sampled_from([1, 2, 3, 8, 12, 16, 64, 96]),
    batch=st.integers(1, 512),
    seq_len=st.sampled_from([1000, 2048, 8192]),
    shape=st.sampled_from([LLAMA_8B, LLAMA_70B]),
)
def test_everything_enumerated_is_legal(accelerators: int, batch: int, seq_len: int, shape: Any) -> None:
    asked = recipe(global_batch=batch, seq_len=seq_len)
    for space in (Space(), any_engine(shape.layers)):
        for group in families(shape, accelerators, 8, 8, asked, space):
            sizes = [found.recipe.micro_batch for found in group]
            assert sizes == sorted(set(sizes))
            for found in group:
                check_setup(found, link_domain=8)
                layout = found.layout
                assert layout.tp * layout.pp * layout.cp * layout.dp == accelerators
                assert layout.dp * found.recipe.micro_batch * found.accumulation == batch
