"""Advice is what happens when it is followed: asked again with what it names, it fits and is as fast as it says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.plan.jobs import job, pool
from tests.unit.plan.setups import LLAMA_8B, LLAMA_70B, question
from warpbeam.errors import UserError
from warpbeam.plan.answer import Answer, Change, answer
from warpbeam.plan.asked import Asked
from warpbeam.plan.layouts import Space
from warpbeam.plan.machine import machine_from_words
from warpbeam.plan.model_shape import model_shape
from warpbeam.plan.nearest import question as asked_question
from warpbeam.plan.plan import make_plan

BIG = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 22}
SMALL = BIG | {"hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16, "intermediate_size": 4096}
L8: dict[str, Any] = {"seq_len": 8192, "global_batch_tokens": 1_048_576}
L70: dict[str, Any] = {"seq_len": 4096, "global_batch_tokens": 2_097_152}


def ask(words: str, shape: Any, **asked: Any) -> Answer:
    return answer(asked_question(Asked(**asked), shape, machine_from_words(words)))


def followed(change: Change, words: str, asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The question with the options written that the advice names."""
    asked = dict(asked)
    text = re.match(r"`(--[^`]+)`", change.text)
    assert text, change.text
    for option, value in re.findall(r"--([a-z-]+) (\S+)", text[1]):
        if option == "accelerators":
            words = value
        else:
            asked[option.replace("-", "_")] = int(value) if value.isdigit() else value
    return words, asked


def check(words: str, shape: Any, asked: dict[str, Any]) -> None:
    found = ask(words, shape, **asked)
    for change in (*found.would_fit, *([found.help_most] if found.help_most else [])):
        if change.changes:
            there, then = followed(change, words, asked)
            now = ask(there, shape, **then).chosen
            assert now.fits, change.text
            assert now.memory_gib == pytest.approx(change.memory_gib), change.text
            assert now.tokens_per_s == pytest.approx(change.tokens_per_s), change.text
            assert now.runs_here or asked.get("engine") != "here", change.text
        assert change.changes or asked.get("engine") != "here", change.text
    if asked.get("engine") == "here":
        check_alternatives(found, words, shape, asked)


def check_alternatives(found: Answer, words: str, shape: Any, asked: dict[str, Any]) -> None:
    """What `otherwise` names of this version, typed out after the same command, is as fast as it says."""
    for other in found.alternatives:
        named = {name: getattr(other, name) for name in ("strategy", "micro_batch", "checkpointing", "offload")}
        now = ask(words, shape, **asked | named).chosen
        assert (now.step_s, now.memory_gib) == pytest.approx((other.step_s, other.memory_gib)), named
        assert other.runs_here


@settings(max_examples=40)  # each asks a dozen questions
@given(
    fixed=st.fixed_dictionaries(
        {},
        optional={
            "strategy": st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp", "distributed_optimizer"]),
            "checkpointing": st.sampled_from(["none", "full"]),
            "micro_batch": st.sampled_from([1, 2, 4]),
            "tp": st.sampled_from([1, 2, 8]),
            "engine": st.sampled_from(["any", "here"]),
        },
    ),
    words=st.sampled_from(["1xA10G", "2xL4", "4xA100-40GB", "16xH100", "32xA100-80GB"]),
    shape=st.sampled_from([LLAMA_8B, LLAMA_70B]),
    sequences=st.sampled_from([1, 16, 128]),
)
def test_advice_that_is_followed_holds(fixed: dict[str, Any], words: str, shape: Any, sequences: int) -> None:
    asked = {"seq_len": 4096, "global_batch_tokens": 4096 * sequences, **fixed}
    try:
        check(words, shape, asked)
    except UserError:  # fixed so that nothing is legal: another test's
        assert fixed


@pytest.mark.parametrize("words", ["1xA10G", "8xA100-40GB", "16xH100"])
def test_engine_here_is_advised_of_nothing_else(words: str) -> None:
    """Neither adapters nor other engines: `--engine here` would refuse them."""
    asked = {"seq_len": 4096, "global_batch_tokens": 4096 * 64, "engine": "here"}
    found = ask(words, LLAMA_70B, **asked)
    assert found.would_fit
    check(words, LLAMA_70B, asked)
    assert not any("lora" in change.text or "not run" in change.text for change in found.would_fit)
    assert all(other.runs_here for other in found.alternatives)


def test_what_was_fixed_is_kept_or_named() -> None:
    """70B by ddp: half the sequence does not make it fit, and nothing says that it does."""
    found = ask("32xA100-80GB", LLAMA_70B, strategy="ddp", **L70)
    texts = [change.text for change in found.would_fit]
    assert texts[0] == "`--strategy zero3`"
    assert not any("--seq-len" in text for text in texts)
    assert any("--lora 16 --base-bits 4" in text for text in texts)
    check("32xA100-80GB", LLAMA_70B, {"strategy": "ddp", **L70})


def test_every_kind_of_change_is_offered() -> None:
    """70B on one 24 GB card: more of them, or shorter sequences with states in host memory."""
    texts = " ".join(
        change.text for change in ask("1xA10G", LLAMA_70B, seq_len=4096, global_batch_tokens=4096).would_fit
    )
    for word in ("--accelerators", "--seq-len", "--offload cpu"):
        assert word in texts


def test_a_strategy_that_was_fixed_is_a_change_like_others() -> None:
    found = ask("16xH100", LLAMA_8B, strategy="zero3", **L8)
    assert found.help_most is not None
    assert found.help_most.text.startswith("`--strategy ")
    assert found.help_most.gain is not None
    fastest = min(other.step_s for other in found.alternatives)
    assert found.help_most.gain == pytest.approx(found.chosen.step_s / fastest - 1, abs=0.02)


def test_one_choice_for_this_version() -> None:
    """What `this version` names beside a foreign best is what asking for this version alone chooses."""
    beside = ask("16xH100", LLAMA_8B, **L8).ours
    alone = ask("16xH100", LLAMA_8B, engine="here", **L8).chosen
    assert beside == alone
    assert ask("8xTPU-v5p", LLAMA_8B, **L8).ours is None
    assert ask("16xH100", LLAMA_8B, precision="fp8", **L8).ours is None


@pytest.mark.parametrize("batch", [16, 64, 128, 256])
@pytest.mark.parametrize("seq_len", [2048, 8192])
@pytest.mark.parametrize(("kind", "gib", "nodes"), [("H100-SXM", 80, 2), ("A100-40GB", 40, 2), ("A100-80GB", 80, 1)])
def test_a_job_and_a_question_choose_alike(kind: str, gib: int, nodes: int, seq_len: int, batch: int) -> None:
    config = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 14336}
    there = pool(kind, memory_gib=gib, nodes=nodes, per_node=8)
    loaded = job(model={"path": "hf://meta/llama"}, data__seq_len=seq_len, train__global_batch=batch)
    plan = make_plan(loaded, there, world_size=8 * nodes, model_config=config)
    found = ask(f"{8 * nodes}x{kind}", LLAMA_8B, seq_len=seq_len, global_batch_tokens=batch * seq_len, engine="here")
    assert plan.answer is not None
    if plan.answer.chosen.likely:
        assert plan.answer.chosen == found.chosen


def test_a_job_s_advice_is_written_for_a_job() -> None:
    loaded = job(
        model={"path": "hf://meta/llama"}, data__seq_len=4096, train__global_batch=64, parallelism__strategy="zero1"
    )
    config = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 14336}
    there = pool("A100-40GB", memory_gib=40, nodes=2, per_node=8)
    plan = make_plan(loaded, there, world_size=16, model_config=config)
    assert plan.answer is not None
    assert not plan.answer.chosen.fits
    first = plan.answer.would_fit[0]
    assert "`strategy: zero" in first.text
    changed = job(
        model={"path": "hf://meta/llama"},
        data__seq_len=4096,
        train__global_batch=64,
        parallelism__strategy=first.changes["strategy"],
        **({"train__activation_checkpointing": True} if "checkpointing" in first.changes else {}),
    )
    again = make_plan(changed, there, world_size=16, model_config=config).answer
    assert again is not None
    assert again.chosen.fits
    assert again.chosen.memory_gib == pytest.approx(first.memory_gib)
    assert again.chosen.tokens_per_s == pytest.approx(first.tokens_per_s)


def test_more_machines_than_a_pool_has_are_no_option() -> None:
    """`--accelerators` of a pool names some that it has."""
    asked = question("1xA10G", LLAMA_8B, seq_len=2048, global_batch=64)
    there = replace(asked, in_passing=True, machine=replace(asked.machine, pool="small"))
    text = next(change.text for change in answer(there).would_fit if "accelerators" in change.changes)
    assert "--accelerators" not in text
    assert re.match(r"another pool, of \d+ accelerators \(`small` has 1\)", text)
    larger = replace(there, machine=replace(there.machine, most=1 << 20))
    text = next(change.text for change in answer(larger).would_fit if "accelerators" in change.changes)
    assert re.search(r"`--accelerators \d+[ `]", text)
    in_a_job = replace(larger, in_passing=False)
    text = next(change.text for change in answer(in_a_job).would_fit if "accelerators" in change.changes)
    assert re.search(r"`accelerators: \d+`", text)


def test_fewer_ranks_of_a_cpu_pool_have_more_memory_each() -> None:
    """And no more of them than it has: their memory is the nodes'."""
    loaded, there = job(model={"path": "hf://meta/llama"}), pool(memory_gib=6.5, per_node=4)
    plan = make_plan(loaded, there, world_size=8, model_config=SMALL)
    assert plan.answer is not None
    assert not plan.answer.chosen.fits
    counts = [change.changes["accelerators"] for change in plan.answer.would_fit if "accelerators" in change.changes]
    assert counts
    assert max(counts) < 8
    change = next(change for change in plan.answer.would_fit if set(change.changes) == {"accelerators"})
    assert change.text == f"`accelerators: {change.changes['accelerators']}`"
    again = make_plan(loaded, there, world_size=change.changes["accelerators"], model_config=SMALL).answer
    assert again is not None
    assert again.chosen.fits
    assert again.chosen.memory_gib == pytest.approx(change.memory_gib)
    too_large = make_plan(loaded, there, world_size=4, model_config=BIG).answer
    assert too_large is not None
    assert not any("accelerators" in change.changes for change in too_large.would_fit)


def test_fp16_helps_where_there_are_no_bf16_units() -> None:
    """A V100: bf16 is computed in fp32."""
    found = ask("8xV100-SXM-32GB", model_shape(SMALL), seq_len=1024, global_batch_tokens=131_072)
    assert found.help_most is not None
    assert found.help_most.text.startswith("`--precision fp16`")
    assert found.help_most.gain is not None
    assert found.help_most.gain > 0.5
    after = ask("8xV100-SXM-32GB", model_shape(SMALL), seq_len=1024, global_batch_tokens=131_072, precision="fp16")
    assert after.chosen.tokens_per_s == pytest.approx(found.help_most.tokens_per_s)


def test_nothing_is_offered_that_another_change_does_alone() -> None:
    space = Space(shardings=("zero1",), checkpointings=("full",))
    found = answer(replace(question("64xA100-80GB", LLAMA_70B, space)))
    kinds = [set(change.changes.items()) for change in found.would_fit if change.changes]
    for i, kind in enumerate(kinds):
        assert not any(other <= kind for other in kinds[:i])
