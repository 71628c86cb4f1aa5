"""The words and products of plan/explain.py: states, a layer's activations, logits, each with its numbers filled in."""

from __future__ import annotations

from collections.abc import Iterator

from warpbeam.plan.memory import MemorySum, dynamic_parts
from warpbeam.plan.memory_coefficients import fitted
from warpbeam.plan.memory_terms import (
    ADAPTER_BYTES,
    CHUNKS_OF_LOSS,
    EAGER_BYTES,
    GIB,
    MOMENT_BYTES,
    RECOMPUTED_EAGER_BYTES,
    StageParameters,
    Terms,
    adapter_parameters,
    frozen_bytes,
    shards,
    stage_parameters,
    stage_terms,
    state_bytes,
    table_bytes,
)
from warpbeam.plan.setup import Setup

STATES = ("parameters", "gradients", "optimizer")
MOMENTS = {
    "adamw": "two moments",
    "adamw_8bit": "two moments in 8 bits",
    "adafactor": "factored second moments",
    "sgd": "momentum",
    "muon": "momentum",
}
SHOWN_GIB = 0.005  # what rounds to nothing is left out


def head_words(setup: Setup, *, last: bool) -> Iterator[str]:
    """What the products below begin with: parameters, ranks, tokens; and of a split model, one rank's part."""
    shape, layout, recipe = setup.shape, setup.layout, setup.recipe
    yield (
        f"N = {shape.parameters:,} parameters; {layout.accelerators} ranks, dp {layout.dp}; "
        f"a micro-batch is {_tokens(setup):,} tokens" + (f" of each cp rank ({layout.cp})" if layout.cp > 1 else "")
    )
    here = stage_parameters(setup, last=last)
    if _is_split(setup):
        stage = f" on the {'last' if last else 'first'} of {layout.pp} stages, the fullest" if layout.pp > 1 else ""
        split = f" / {layout.tp} (tp)" if layout.tp > 1 else ""
        experts = f" + {here.experts:,.0f} of experts (ep {layout.ep})" if here.experts else ""
        tables = "both tables" if here.tables == 2 else "one table"
        yield (
            f"P = {here.dense:,.0f}{experts} of them: {here.layers:g} of {shape.layers} layers and {tables} of the "
            f"vocabulary{stage}{split}"
        )
    if recipe.lora is not None:
        yield (
            f"A = {adapter_parameters(shape, recipe.lora):,.0f} elements of adapters: rank {recipe.lora.rank} x "
            f"(inputs + outputs) of each linear layer, {shape.layers} layers"
        )


def _is_split(setup: Setup) -> bool:
    return setup.layout.tp * setup.layout.pp * setup.layout.ep > 1


def _tokens(setup: Setup) -> int:
    return setup.recipe.micro_batch * setup.recipe.seq_len // setup.layout.cp


def state_lines(setup: Setup, needed: MemorySum, *, last: bool) -> Iterator[tuple[str, str, float]]:
    """(name, words, GiB) of parameters, gradients and optimizer."""
    here = stage_parameters(setup, last=last)
    values = (needed.parameters_gib, needed.gradients_gib, needed.optimizer_gib)
    if setup.recipe.lora is not None:
        yield from zip(STATES, _adapter_words(setup, here, last=last), values, strict=True)
        return
    sizes, by = state_bytes(setup.layout, setup.recipe), shards(setup.layout)
    reasons = (_weights_reason(setup), _gradients_reason(sizes[1]), _optimizer_reason(setup, sizes))
    for name, value, size, ranks, why in zip(STATES, values, sizes, by, reasons, strict=True):
        experts_by = max(1.0, ranks / max(1, setup.layout.ep))
        exact = size * (here.dense / ranks + here.experts / experts_by) / GIB
        if setup.layout.offload != "none" and value < exact / 2:
            yield name, f"offloaded to {setup.layout.offload}", value
            continue
        if abs(exact - value) > 0.005 * max(exact, 0.01) and name == "parameters":
            ranks, experts_by = by[1], max(1.0, by[1] / max(1, setup.layout.ep))  # FSDP's SHARD_GRAD_OP
            exact = size * (here.dense / ranks + here.experts / experts_by) / GIB
        part = _elements(setup, here, ranks, experts_by)
        buffers = _buffer_words(setup, part, last=last) if name == "optimizer" else ""
        yield name, f"{part} x {size:g} bytes ({why}){buffers}", value


def _buffer_words(setup: Setup, elements: str, *, last: bool) -> str:
    """Temporary buffers of the optimizer's step, for each of the elements it updates; nothing where there are none."""
    terms, stack = stage_terms(setup, last=last), fitted().of(setup.layout.stack)
    layers, kept, logits, step = dynamic_parts(setup, terms, stack)
    if step <= SHOWN_GIB:
        return ""
    words = f" + {elements} x {stack.step_bytes:.3f} bytes of buffers in the step"
    if stack.reuses:
        words += f", less the {layers + kept + logits:.2f} GiB of activations and logits whose room they take"
    return words


def _elements(setup: Setup, here: StageParameters, ranks: int, experts_by: float) -> str:
    """`N / 16 ranks`, `P / 8 ranks`, `(1,234 / 8 + 5,678 / 2 ranks)`."""
    spread = f" / {ranks} ranks" if ranks > 1 else ""
    if here.experts and setup.layout.ep > 1:
        return f"({here.dense:,.0f} / {ranks} + {here.experts:,.0f} / {experts_by:g} ranks)"
    return f"{'P' if _is_split(setup) else 'N'}{spread}"


def _weights_reason(setup: Setup) -> str:
    size = state_bytes(setup.layout, setup.recipe)[0]
    if size == 6:
        return "fp32 weights 4, their 16-bit copies under autocast 2"
    return "16-bit weights" if size == 2 else "fp32 weights"


def _gradients_reason(size: float) -> str:
    return {2.0: "16 bits", 4.0: "fp32, summed over micro-batches", 6.0: "fp32 sums 4, 16-bit gradients 2"}[size]


def _optimizer_reason(setup: Setup, sizes: tuple[float, float, float]) -> str:
    """What is in it: a master copy only where the weights themselves are kept in 16 bits."""
    recipe = setup.recipe
    moments = MOMENTS[recipe.optimizer]
    has_master = sizes[0] == 2 and recipe.master_weights
    if has_master:
        return f"fp32 master weights 4, {moments} {sizes[2] - 4:g}"
    return f"{moments}; the weights are their own master" if sizes[0] >= 4 else f"{moments} in 16 bits, no master"


def _adapter_words(setup: Setup, here: StageParameters, *, last: bool) -> tuple[str, str, str]:
    """The frozen base, and fp32 weights, gradients and optimizer states of the adapters alone."""
    layout, lora, optimizer = setup.layout, setup.recipe.lora, setup.recipe.optimizer
    assert lora is not None
    by_weights, by_gradients, by_optimizer = shards(layout)
    base = here.dense + here.experts - here.outside
    frozen = frozen_bytes(setup.recipe, lora)
    tables = table_bytes(layout, setup.recipe, lora)
    whole = "A" if not _is_split(setup) else f"A x {_adapters_here(setup, here):.4f} (its part)"
    over = f" / {by_weights} ranks" if by_weights > 1 else ""
    weights = (
        f"({base:,.0f} frozen x {frozen:g} bytes + {here.outside:,.0f} of the vocabulary's tables "
        f"x {tables:g} + {whole} x {ADAPTER_BYTES:g}){over}"
    )
    if lora.quantised:
        more = fitted().of(layout.stack).quantised
        quantised = base * frozen / by_weights / GIB
        weights += f" + {more:.2f} x {quantised:.2f} of the quantised base"
    if layout.offload != "none" and layout.offload_parameters:
        weights = f"offloaded to {layout.offload}"
    part = whole + (f" / {by_optimizer} ranks" if by_optimizer > 1 else "")
    states = f"{part} x {MOMENT_BYTES[optimizer]:g} bytes ({MOMENTS[optimizer]}){_buffer_words(setup, part, last=last)}"
    gradients = f"{whole} x {ADAPTER_BYTES:g} bytes (of the adapters alone)"
    gradients += f" / {by_gradients} ranks" if by_gradients > 1 else ""
    if layout.offload != "none":
        states = f"offloaded to {layout.offload}"
        gradients = states if layout.sharding in ("zero2", "zero3") else gradients
    return weights, gradients, states


def _adapters_here(setup: Setup, here: StageParameters) -> float:
    """The share of the adapters that this rank has."""
    whole = setup.shape.parameters - setup.shape.vocab_size * setup.shape.hidden_size * (1 if setup.shape.tied else 2)
    return (here.dense + here.experts - here.outside) / max(1, whole)


def layer_words(setup: Setup, terms: Terms) -> str:
    """What a layer keeps of a micro-batch: `K = tokens x bytes x (sizes)`."""
    shape, layout, recipe = setup.shape, setup.layout, setup.recipe
    wide = 4 if recipe.precision in ("fp32", "tf32") else 2
    tokens, used = _tokens(setup), shape.experts_per_token
    branches = 3 if shape.gated else 2
    inputs, scale = 4.0, 1.0
    if recipe.precision == "fp8" and layout.stack == "megatron":  # inputs of products in one byte
        inputs, scale = 3.0, 0.5
    per_tp = f" / tp {layout.tp}" if layout.tp > 1 else ""
    stream = f"{inputs:g} x {shape.hidden_size:,} of inputs" + (per_tp if layout.sequence_parallel else "")
    attention = f"{1 + scale:g} x {shape.query_size:,} + 2 x {shape.kv_size:,} of attention"
    mlp = (
        f"{branches * scale:g} x {shape.intermediate_size:,}"
        + (f" x {used} experts" if used > 1 else "")
        + " of the MLP"
    )
    routed = f" + {2 * used} x {shape.hidden_size:,} routed" if shape.experts > 1 else ""
    split = f"{attention} + {mlp}{routed}"
    split = f"({split}){per_tp}" if per_tp else split
    text = f"K = {tokens:,} tokens x {wide} bytes x ({stream} + {split})"
    if recipe.eager_attention and recipe.checkpointing != "selective":
        eager = (EAGER_BYTES + (RECOMPUTED_EAGER_BYTES if recipe.checkpointing == "full" else 0.0)) * wide / 2
        text += f" + {eager:g} bytes x {tokens:,} x {recipe.seq_len:,} x {shape.heads} heads{per_tp} of scores"
    return f"{text} = {terms.layer:.3f} GiB that a layer keeps of it"


def activation_words(setup: Setup, terms: Terms, *, last: bool) -> str:
    """Layers, or the inputs that full checkpointing keeps and one layer computed again."""
    recipe, scale = setup.recipe, fitted().of(setup.layout.stack)
    if recipe.offload_activations:
        return f"one layer K {terms.layer:.3f} x {scale.none:.3f}; the others' are on the host"
    if recipe.checkpointing == "full":
        factor = scale.full
        return f"inputs of the layers {terms.kept:.3f} x {scale.kept:.3f} + one layer again, K x {factor:.3f}"
    factor = scale.selective if recipe.checkpointing == "selective" else scale.none
    flying = terms.layers / (on_stage := stage_parameters(setup, last=last).layers)
    held = f"{on_stage:g} layers" + (f" x {flying:g} micro-batches held" if flying != 1 else "")
    return f"K x {held} x {factor:.3f}"


def logits_words(setup: Setup, *, last: bool) -> str:
    """Of the stage that has the output; the fullest may be another."""
    shape, layout, recipe = setup.shape, setup.layout, setup.recipe
    if layout.pp > 1 and not last:
        return f"none: the fullest is the first of {layout.pp} stages, and the last has the output"
    vocab = f"{shape.vocab_size:,} entries" + (f" / tp {layout.tp}" if layout.tp > 1 else "")
    chunks = f" / {CHUNKS_OF_LOSS} chunks" if recipe.chunked_loss else ""
    each = fitted().of(layout.stack).logit_bytes
    return f"{_tokens(setup):,} tokens x {vocab} x {each:.3f} bytes{chunks} (logits, fp32 copy, gradient)"
