"""Questions in passing: what is typed is checked, with the nearest legal values."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plan.setups import LLAMA_8B
from warpbeam.errors import UserError
from warpbeam.plan.asked import Asked, inline_shape
from warpbeam.plan.machine import machine_from_words
from warpbeam.plan.model_shape import model_shape
from warpbeam.plan.nearest import question


def ask(words: str = "16xH100", **changes: Any) -> Any:
    return question(
        Asked(**{"seq_len": 8192, "global_batch_tokens": 1_048_576} | changes), LLAMA_8B, machine_from_words(words)
    )


def test_what_is_open_is_searched() -> None:
    found = ask()
    assert found.recipe.global_batch == 128
    assert found.recipe.precision == "bf16"
    strategies = {candidate.setup.layout.sharding for candidate in found.search().ranked}
    assert {"zero3", "fsdp", "distributed_optimizer"} <= strategies


def test_what_is_typed_stays() -> None:
    found = ask(tp=4, pp=2, cp=1, micro_batch=2, checkpointing="full").search()
    assert found.ranked
    for candidate in found.ranked:
        layout, recipe = candidate.setup.layout, candidate.setup.recipe
        assert (layout.tp, layout.pp, layout.cp, layout.dp) == (4, 2, 1, 2)
        assert (recipe.micro_batch, recipe.checkpointing) == (2, "full")
    here = ask(engine="here").search()
    assert {candidate.setup.layout.stack for candidate in here.ranked} == {"deepspeed"}
    assert all(candidate.setup.layout.dp == 4 for candidate in ask(dp=4).search().ranked)


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"tp": 3}, "tp 3 x pp 1 x cp 1 = 3 does not divide 16", "`--tp 2` or `4`"),
        ({"tp": 4, "pp": 2, "cp": 1, "dp": 4}, "= 32, there are 16 accelerators", "`--dp 2`"),
        ({"tp": 2, "dp": 3}, "there are 16 accelerators", "`--dp 2` or `4`"),
        ({"tp": 16}, "goes beyond the 8 accelerators", "`--allow tp_across_nodes`, or `--tp 8`"),
        ({"tp": 0}, "--tp is 0", "`--tp 1` or more"),
        ({"strategy": "zero4"}, "no strategy `zero4`", "zero1, zero2, zero3"),
        ({"strategy": "zero3", "tp": 2}, "tp 2 goes with fsdp", "`--strategy fsdp` or `distributed_optimizer`"),
        ({"strategy": "zero3", "pp": 2}, "pp 2 goes with distributed_optimizer", "`--pp 1`"),
        ({"strategy": "fsdp", "pp": 2}, "pp 2 goes with distributed_optimizer", "`--pp 1`"),
        ({"strategy": "ddp", "offload": "cpu"}, "offload cpu goes with zero1", "`--strategy zero1` or `zero2`"),
        ({"global_batch_tokens": 1_000_000}, "no whole number of sequences of 8192", "`--global-batch-tokens 999424`"),
        ({"global_batch_tokens": 0}, "--global-batch-tokens is 0", "1048576"),
        ({"seq_len": 0}, "--seq-len is 0", "8192"),
        ({"seq_len": 1 << 40, "global_batch_tokens": 1 << 40}, "--seq-len is 1099511627776", "8192"),
        ({"lora": 0}, "--lora is 0", "--lora 16"),
        ({"lora": 10**8}, "--lora is 100000000", "--lora 16"),
        ({"base_bits": 4}, "--base-bits goes with --lora", "--lora 16 --base-bits 4"),
        ({"allow": ("foo",)}, "--allow foo", "tp_across_nodes"),
        ({"engine": "here", "lora": 16}, "does not run LoRA adapters", "leave --engine out"),
        (
            {"engine": "here", "checkpointing": "selective"},
            "selective goes with fsdp",
            "`--checkpointing none` or `full`",
        ),
        ({"tp": 1, "pp": 1, "cp": 1, "global_batch_tokens": 8192 * 100}, "100 does not divide by dp 16", "8192 * 96"),
        ({"engine": "here", "micro_batch": 3}, "by dp 16 x micro_batch 3 = 48", "`--micro-batch 2` or `4`"),
        ({"micro_batch": 3}, "no legal layout shares 128 sequences", "`--micro-batch 2` or `4`"),
        ({"cp": 16}, "8192 tokens of a sequence cannot be split by cp 16", "`--cp 8` or `4`"),
        ({"seq_len": 8190, "global_batch_tokens": 8_190_000, "cp": 4}, "8190 tokens of a sequence", "`--cp 1`"),
    ],
)
def test_refusals(changes: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        ask(**changes)
    assert what in caught.value.what
    assert fix.replace("8192 * 96", str(8192 * 96)) in caught.value.fix
    assert caught.value.exit_code == 2


def test_two_things_that_cannot_be_together() -> None:
    """32 layers on 5 stages, on 15 accelerators: no single change mends it."""
    with pytest.raises(UserError) as caught:
        ask("15xH100", pp=5)
    assert "leave --pp out" in caught.value.fix
    assert "--accelerators 16xH100-SXM-80GB" in caught.value.fix


OPTION = re.compile(r"`(--[a-z-]+) ([^`]+)`((?: or `[^-`][^`]*`)*)")


@given(
    sizes=st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("tp", "pp", "cp", "dp", "ep", "micro_batch"), st.integers(1, 17)),
            "strategy": st.sampled_from(["ddp", "zero2", "zero3", "fsdp", "distributed_optimizer"]),
            "checkpointing": st.sampled_from(["none", "selective", "full"]),
            "offload": st.sampled_from(["none", "cpu", "nvme"]),
            "engine": st.sampled_from(["any", "here"]),
        },
    ),
    accelerators=st.integers(1, 40),
    seq_len=st.sampled_from([8190, 8192, 1000]),
    sequences=st.integers(1, 200),
)
def test_every_value_that_a_refusal_offers_is_accepted(
    sizes: dict[str, Any], accelerators: int, seq_len: int, sequences: int
) -> None:
    asked: dict[str, Any] = {"seq_len": seq_len, "global_batch_tokens": seq_len * sequences, **sizes}
    words = f"{accelerators}xH100"
    try:
        ask(words, **asked)
    except UserError as error:
        fix = error.fix
    else:
        return
    assert fix, "a refusal says what to write"
    if left_out := re.match(r"leave ([a-z, -]+) out", fix):
        asked |= {name.removeprefix("--").replace("-", "_"): None for name in left_out[1].split(", ")}
        if "engine" in asked and asked["engine"] is None:
            asked["engine"] = "any"
    offered = [
        (option.removeprefix("--").replace("-", "_"), value)
        for option, first, more in OPTION.findall(fix)
        for value in (first, *re.findall(r"`([^`]+)`", more))
    ]
    if not offered:
        assert ask(words, **asked).search() is not None
    for name, value in offered:
        if name == "accelerators":
            ask(value, **asked)
        elif name == "allow":
            ask(words, **asked, allow=(value,))
        else:
            ask(words, **asked | {name: int(value) if value.isdigit() else value})


def test_positions_that_are_learned_end() -> None:
    shape = model_shape({"model_type": "gpt2"})
    with pytest.raises(UserError, match="longer than the 1024 positions") as caught:
        question(Asked(seq_len=2048, global_batch_tokens=131_072), shape, machine_from_words("8xH100"))
    assert "--seq-len 1024" in caught.value.fix


def test_how_it_is_trained() -> None:
    recipe = ask(optimizer="adafactor", attention="eager", lora=8, base_bits=4).recipe
    assert (recipe.optimizer, recipe.eager_attention) == ("adafactor", True)
    assert (recipe.lora.rank, recipe.lora.base_bits) == (8, 4)
    with pytest.raises(UserError, match="does not run TPUs"):
        ask("8xTPU-v5p", engine="here")


def test_tensor_parallelism_over_the_network_when_allowed() -> None:
    assert ask(tp=16, allow=("tp_across_nodes",)).search().ranked


def test_accelerators_in_words() -> None:
    machine = machine_from_words("16 x H100-SXM")
    assert (machine.accelerators, machine.per_node, machine.nodes, machine.link_domain) == (16, 8, 2, 8)
    assert machine_from_words("4xA100-40GB").memory_gib == pytest.approx(39.4)
    for wrong in ("H100", "0xH100", "16", "x", "16 x H100 x 2", "16xH100,8xA100", "16xH100 + 8xA100"):
        with pytest.raises(UserError, match="no number of accelerators"):
            machine_from_words(wrong)
    with pytest.raises(UserError, match="H10000") as caught:
        machine_from_words("8xH10000")
    assert "H100" in caught.value.fix


def test_a_shape_in_words() -> None:
    shape = inline_shape("layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256")
    assert shape.parameters == LLAMA_8B.parameters
    with pytest.raises(UserError, match="`layers=many` is no NAME=NUMBER"):
        inline_shape("layers=many")
    with pytest.raises(UserError, match="layers is given twice"):
        inline_shape("layers=32,layers=9")
    with pytest.raises(UserError, match="lacks"):
        inline_shape("layers=32")
