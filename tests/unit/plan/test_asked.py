"""Questions in passing: what is typed is checked, with the nearest legal values."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.setups import LLAMA_8B
from warpbeam.errors import UserError
from warpbeam.plan.asked import Asked, inline_shape, question
from warpbeam.plan.machine import machine_from_words


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
    assert {candidate.setup.layout.stack for candidate in here.ranked} <= {"deepspeed", "hf"}
    assert all(candidate.setup.layout.dp == 4 for candidate in ask(dp=4).search().ranked)


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"tp": 3}, "tp 3 x pp 1 x cp 1 = 3 does not divide 16", "use 15 or 18 accelerators"),
        ({"tp": 4, "pp": 2, "cp": 1, "dp": 4}, "= 32, there are 16 accelerators", "`--dp 2`, or use 32 accelerators"),
        ({"tp": 2, "dp": 3}, "there are 16 accelerators", "`--dp 2 or 4`"),
        ({"tp": 16}, "goes beyond the 8 accelerators", "--allow tp_across_nodes"),
        ({"tp": 0}, "tp is 0", "1 or more"),
        ({"strategy": "zero4"}, "no strategy `zero4`", "zero1, zero2, zero3"),
        ({"strategy": "zero3", "tp": 2}, "tp 2 goes with fsdp", "distributed_optimizer"),
        ({"strategy": "fsdp", "pp": 2}, "pp 2 goes with distributed_optimizer", "--pp 1"),
        ({"global_batch_tokens": 1_000_000}, "no whole number of sequences of 8192", "999424 or 1007616"),
        ({"global_batch_tokens": 0}, "no whole number", "8192"),
        ({"seq_len": 0}, "--seq-len is 0", "8192"),
        (
            {"tp": 1, "pp": 1, "cp": 1, "global_batch_tokens": 8192 * 100},
            "global batch 100 does not divide by dp 16",
            "96 or 112 sequences",
        ),
        (
            {"engine": "here", "micro_batch": 3},
            "global batch 128 does not divide by dp 16 x micro_batch 3 = 48",
            "96 or 144 sequences",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        ask(**changes)
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.exit_code == 2


def test_tensor_parallelism_over_the_network_when_allowed() -> None:
    assert ask(tp=16, allow=("tp_across_nodes",)).search().ranked


def test_accelerators_in_words() -> None:
    machine = machine_from_words("16 x H100-SXM")
    assert (machine.accelerators, machine.per_node, machine.nodes, machine.link_domain) == (16, 8, 2, 8)
    assert machine_from_words("4xA100-40GB").memory_gib == pytest.approx(39.4)
    for wrong in ("H100", "0xH100", "16", "x"):
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
    with pytest.raises(UserError, match="lacks"):
        inline_shape("layers=32")
