"""The memory sum written out: each part's formula with this model's numbers in it, so that a person learns it.

The formulas are those of plan/memory_terms.py and the fitted numbers those of plan/memory_coefficients.py: what is
printed here is computed there (a test multiplies the printed products out and holds them to the parts).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from warpbeam.plan.advice import checkpointing_words
from warpbeam.plan.correction import Correction
from warpbeam.plan.explain_terms import (
    activation_words,
    head_words,
    layer_words,
    logits_words,
    state_lines,
)
from warpbeam.plan.forecast import forecast, memory_of
from warpbeam.plan.layouts import RUNS_HERE
from warpbeam.plan.machine import Machine
from warpbeam.plan.memory import memory
from warpbeam.plan.memory_coefficients import fitted
from warpbeam.plan.memory_terms import stage_terms
from warpbeam.plan.setup import Setup

STAGE_WORDS: Final = {
    "ddp": "every rank holds all of it",
    "zero1": "optimizer states are shared",
    "zero2": "gradients too",
    "zero3": "weights too; whole layers are gathered while they compute",
}


def explain_memory(setup: Setup, machine: Machine, correction: Correction | None = None) -> list[str]:
    """Lines of text: the arithmetic of one rank, from parameters to the answer, then the ZeRO stages side by side."""
    source = "factors with three decimals, and the margin, are fitted on published runs: docs/planner-accuracy.md"
    return [*_sum(setup, machine, correction), source, "", *_by_stage(setup, machine, correction)]


def _fullest_is_last(setup: Setup, machine: Machine) -> bool:
    """Whether the sum is that of the last pipeline stage, which holds the logits."""
    if setup.layout.pp == 1:
        return True
    last = memory(setup, machine.memory_gib, on_cpu=machine.is_cpu, last_stage=True)
    return last.total_gib >= memory_of(setup, machine).total_gib


def _sum(setup: Setup, machine: Machine, correction: Correction | None) -> Iterator[str]:
    needed, last = memory_of(setup, machine), _fullest_is_last(setup, machine)
    terms = stage_terms(setup, last=last)
    stack = fitted().of(setup.layout.stack)
    yield from head_words(setup, last=last)
    yield layer_words(setup, terms)
    yield "one rank holds, in GiB (2^30 bytes):"
    for name, words, value in state_lines(setup, needed, last=last):
        yield _line(name, words, value)
    yield _line("activations", activation_words(setup, terms, last=last), needed.activations_gib)
    yield _line("logits and loss", logits_words(setup, last=last), needed.logits_gib)
    gathered = f"{terms.gathered:.3f} of whole layers x {stack.gathered:.3f}"
    fixed = "" if machine.is_cpu else f" + {stack.fixed_gib:.2f} of NCCL's and the libraries' buffers"
    yield _line("communication", gathered + fixed, needed.communication_gib)
    if not machine.is_cpu:
        share_words = f"{stack.fragmentation:.3f} of what the allocator gave out, {needed.allocated_gib:.2f}"
        yield _line("fragmentation", share_words, needed.fragmentation_gib)
    yield _line("context", "the process itself" if machine.is_cpu else "CUDA context, kernels", needed.context_gib)
    if needed.on_cpu and needed.host_gib:
        yield _line("offloaded", "to the same memory: this is a CPU", needed.host_gib)
    yield _line("expected peak", "", needed.total_gib)
    yield from _answer(setup, machine, correction)
    if needed.host_gib and not needed.on_cpu:
        lacks = forecast(setup, machine, correction).host_lacks_gib
        short = f"; the node lacks {lacks:.2f}" if lacks else ""
        yield _line("host memory", f"of each rank, offloaded{short}", needed.host_gib)
    if needed.nvme_gib:
        yield _line("disk", "of each rank, offloaded", needed.nvme_gib)


def _answer(setup: Setup, machine: Machine, correction: Correction | None) -> Iterator[str]:
    now = forecast(setup, machine, correction)
    if correction is not None:
        yield _line("calibrated", f"by {', '.join(correction.runs)} on this pool", now.memory_gib)
    why = "this pool was measured" if correction else "19 of 20 published runs stay below it"
    yield _line("with margin", f"+ {now.margin_gib:.2f}: {why}", now.promised_gib)
    answer = "fits" if now.fits else "likely runs, without a promise" if now.likely else "does not fit"
    if now.host_lacks_gib and now.promised_gib <= now.available_gib:
        answer = "fits here, but the host's memory does not hold what is offloaded"
    yield _line("available", f"{answer}: {now.promised_gib:.2f} of {now.available_gib:.2f}", now.available_gib)


def _by_stage(setup: Setup, machine: Machine, correction: Correction | None) -> Iterator[str]:
    """States of each ZeRO stage: why one fits and another does not."""
    if setup.layout.tp * setup.layout.pp * setup.layout.cp > 1 or setup.layout.offload != "none":
        plain = replace(setup.layout, tp=1, pp=1, cp=1, ep=1, offload="none", offload_parameters=False)
        setup = replace(setup, layout=replace(plain, sequence_parallel=False, virtual_stages=1))
    if setup.recipe.checkpointing == "selective":  # which these strategies do not know
        setup = replace(setup, recipe=replace(setup.recipe, checkpointing="full"))
    how = checkpointing_words(forecast(setup, machine))
    yield (
        f"the same by strategy, without another split or offload, micro-batch {setup.recipe.micro_batch}, {how}: "
        "states, all, and with margin:"
    )
    for sharding in RUNS_HERE:
        layout = replace(setup.layout, sharding=sharding, stack="hf" if sharding == "ddp" else "deepspeed")
        now = forecast(replace(setup, layout=layout), machine, correction)
        states = sum(now.memory_parts[name] for name in ("parameters", "gradients", "optimizer"))
        answer = "fits" if now.fits else "likely" if now.likely else "does not fit"
        yield (
            f"  {sharding:<6} {states:9.2f} {now.memory_gib:9.2f} {now.promised_gib:9.2f}  {answer:<12}  "
            f"{STAGE_WORDS[sharding]}"
        )


def _line(name: str, words: str, value: float) -> str:
    return f"  {name:<16}{value:10.2f}  {words}".rstrip()
