"""The memory sum written out: each part's formula with this model's numbers in it, so that a person learns it.

The formulas are those of plan/memory_terms.py and the fitted numbers those of plan/memory_coefficients.py: what is
printed here is computed there (a test holds the products to the parts).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from warpbeam.plan.correction import Correction
from warpbeam.plan.forecast import forecast, memory_of
from warpbeam.plan.layouts import RUNS_HERE
from warpbeam.plan.machine import Machine
from warpbeam.plan.memory_coefficients import fitted
from warpbeam.plan.memory_terms import GIB, shards, stage_terms, state_bytes
from warpbeam.plan.setup import Setup

STAGE_WORDS: Final = {
    "ddp": "every rank holds all of it",
    "zero1": "optimizer states are shared",
    "zero2": "gradients too",
    "zero3": "weights too; whole layers are gathered while they compute",
}


def explain_memory(setup: Setup, machine: Machine, correction: Correction | None = None) -> list[str]:
    """Lines of text: the arithmetic of one rank, from parameters to the answer, then the ZeRO stages side by side."""
    return [*_sum(setup, machine, correction), "", *_by_stage(setup, machine)]


def _sum(setup: Setup, machine: Machine, correction: Correction | None) -> Iterator[str]:
    shape, layout, recipe = setup.shape, setup.layout, setup.recipe
    needed = memory_of(setup, machine)
    first = stage_terms(setup, last=layout.pp == 1)
    stack = fitted().of(layout.stack)
    n = shape.parameters
    model = layout.tp * layout.pp
    share = f" / {model} (tp {layout.tp} x pp {layout.pp})" if model > 1 else ""
    by = shards(layout)
    sizes = state_bytes(layout, recipe)
    tokens = recipe.micro_batch * recipe.seq_len // layout.cp
    yield f"N = {n:,} parameters; {layout.accelerators} ranks, dp {layout.dp}; a micro-batch is {tokens:,} tokens"
    yield "one rank holds, in GiB (2^30 bytes):"
    moved = layout.offload != "none"
    names = ("parameters", "gradients", "optimizer")
    values = (needed.parameters_gib, needed.gradients_gib, needed.optimizer_gib)
    reasons = (_weights_word(sizes[0]), "summed over micro-batches", "fp32 master weight and moments")
    for name, value, size, ranks, why in zip(names, values, sizes, by, reasons, strict=True):
        if recipe.lora is not None:
            yield _line(name, "frozen base and adapters (plan/memory_terms.py)", value)
        elif moved and value < n * size / ranks / model / GIB / 2:
            yield _line(name, f"offloaded to {layout.offload}", value)
        else:
            spread = f" / {ranks} ranks" if ranks > 1 else ""
            buffers = value - n * size / ranks / model / GIB if name == "optimizer" else 0.0
            extra = f" + {buffers:.2f} of buffers in the step" if buffers > 0.005 else ""
            yield _line(name, f"N x {size:g} bytes ({why}){share}{spread}{extra}", value)
    yield _line("activations", _activation_words(setup, first.layer, first.layers, first.kept), needed.activations_gib)
    vocab = f"{shape.vocab_size:,} entries" + (f" / tp {layout.tp}" if layout.tp > 1 else "")
    yield _line(
        "logits and loss",
        f"{tokens:,} tokens x {vocab} x {stack.logit_bytes:.1f} bytes (logits, fp32 copy, gradient)",
        needed.logits_gib,
    )
    gathered = f"{first.gathered:.2f} of whole layers x {stack.gathered:.2f}"
    fixed = "" if machine.is_cpu else f" + {stack.fixed_gib:.2f} of NCCL's and the libraries' buffers"
    yield _line("communication", gathered + fixed, needed.communication_gib)
    if not machine.is_cpu:
        share_words = f"{stack.fragmentation:.2f} of what the allocator gave out"
        yield _line("fragmentation", share_words, needed.fragmentation_gib)
    yield _line("context", "the process itself" if machine.is_cpu else "CUDA context, kernels", needed.context_gib)
    if needed.on_cpu and needed.host_gib:
        yield _line("offloaded", "to the same memory: this is a CPU", needed.host_gib)
    yield _line("expected peak", "", needed.total_gib)
    now = forecast(setup, machine, correction)
    if correction is not None:
        yield _line("calibrated", f"by {', '.join(correction.runs)} on this pool", now.memory_gib)
    why = "this pool was measured" if correction else "19 of 20 published runs stay below it"
    yield _line("with margin", f"+ {now.margin_gib:.2f}: {why}", now.promised_gib)
    answer = "fits" if now.fits else "does not fit"
    yield _line("available", f"{answer}: {now.promised_gib:.2f} of {now.available_gib:.2f}", now.available_gib)
    if needed.host_gib and not needed.on_cpu:
        yield _line("host memory", "of each rank, offloaded", needed.host_gib)
    if needed.nvme_gib:
        yield _line("disk", "of each rank, offloaded", needed.nvme_gib)


def _weights_word(size: float) -> str:
    return "16-bit weights" if size == 2 else "fp32 weights"


def _activation_words(setup: Setup, layer: float, layers: float, kept: float) -> str:
    scale = fitted().of(setup.layout.stack)
    if setup.recipe.checkpointing == "full":
        return (
            f"inputs of the layers {kept:.3f} x {scale.kept:.2f} + one layer recomputed {layer:.3f} x {scale.full:.2f}"
        )
    factor = scale.selective if setup.recipe.checkpointing == "selective" else scale.none
    return f"{layer:.3f} of a layer x {layers:g} layers x {factor:.2f}"


def _by_stage(setup: Setup, machine: Machine) -> Iterator[str]:
    """States of each ZeRO stage: why one fits and another does not."""
    yield f"the same by strategy, micro-batch {setup.recipe.micro_batch}: states, all, and what a rank must have:"
    if setup.layout.tp * setup.layout.pp * setup.layout.cp > 1 or setup.layout.offload != "none":
        plain = replace(setup.layout, tp=1, pp=1, cp=1, ep=1, offload="none", offload_parameters=False)
        setup = replace(setup, layout=replace(plain, sequence_parallel=False))
    for sharding in RUNS_HERE:
        layout = replace(setup.layout, sharding=sharding, stack="hf" if sharding == "ddp" else "deepspeed")
        checkpointing = "full" if setup.recipe.checkpointing == "selective" else setup.recipe.checkpointing
        needed = memory_of(
            Setup(shape=setup.shape, layout=layout, recipe=replace(setup.recipe, checkpointing=checkpointing)), machine
        )
        states = needed.parameters_gib + needed.gradients_gib + needed.optimizer_gib
        answer = "fits" if needed.fits else "does not fit"
        yield (
            f"  {sharding:<6} {states:9.2f} {needed.total_gib:9.2f} {needed.promised_gib:9.2f}  {answer:<12}  "
            f"{STAGE_WORDS[sharding]}"
        )


def _line(name: str, words: str, value: float) -> str:
    return f"  {name:<16}{value:10.2f}  {words}".rstrip()
