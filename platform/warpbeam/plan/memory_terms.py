"""The physical quantities one rank holds, before any fitted coefficient: states, whole layers, activations, logits.

Sources of the formulas: Rajbhandari et al. 2020 (ZeRO, states by stage); Korthikanti et al. 2022 (activations of a
layer under tensor and sequence parallelism, micro-batches in flight under 1F1B and its interleaved form); FSDP and
ZeRO-3 gather whole layers; the stated accumulation types of Megatron-LM, DeepSpeed, FSDP2 and nanotron.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from warpbeam.plan.model_shape import ModelShape
from warpbeam.plan.setup import NEAREST_STACK, Layout, Lora, Recipe, Setup

GIB: Final = 1 << 30
SHARDS_EVERYTHING: Final = frozenset({"zero3", "fsdp", "hsdp"})
# Bytes of optimizer state a parameter, without the fp32 master weight; in 16 bits where there is no master.
MOMENT_BYTES: Final = {"adamw": 8.0, "adamw_8bit": 2.0, "adafactor": 0.1, "sgd": 4.0, "muon": 4.0}
NF4_BYTES: Final = 0.5 + 4 / 64  # 4 bits and an fp32 scale for each block of 64
BASE_BYTES: Final = {4: NF4_BYTES, 8: 1.0, 16: 2.0}
ADAPTER_BYTES: Final = 4.0  # of the weight, and again of the gradient: peft keeps what is trained in fp32
EAGER_BYTES: Final = 5.0  # softmax and dropout output in 16 bits and the dropout mask, for each head and pair of tokens
RECOMPUTED_EAGER_BYTES: Final = 4.0  # and the gradients of scores and softmax beside them, in the layer at work
CHUNKS_OF_LOSS: Final = 8
GATHERED_LAYERS: Final = 2  # one computes, one is fetched ahead
# DeepSpeed's defaults, in elements: reduce_bucket_size (two with overlap_comm) and allgather_bucket_size,
# stage3_max_live_parameters.
BUCKET: Final = 500_000_000
LIVE_PARAMETERS: Final = 1_000_000_000
MATRICES: Final = 4  # of a layer, of about equal size


class Terms(NamedTuple):
    """One rank of one pipeline stage, in GiB unless named otherwise.

    Attributes:
        trainable: elements whose optimizer step this rank computes, in 2^30.
        quantised: the part of `parameters` that is frozen in 4 or 8 bits.
        gathered: whole layers and their gradients under ZeRO-3 and FSDP.
        layer: what one layer keeps of one micro-batch without checkpointing.
        layers: layer x micro-batches held at once; 1 under full checkpointing.
        kept: the inputs that full checkpointing keeps.
        logits: vocabulary entries of one micro-batch's tokens, in 2^30; 0 away from the last stage.
        host: per rank, offloaded.
    """

    parameters: float
    gradients: float
    optimizer: float
    trainable: float
    quantised: float
    gathered: float
    layer: float
    layers: float
    kept: float
    logits: float
    host: float


def stage_terms(setup: Setup, *, last: bool) -> Terms:
    """The terms of the first pipeline stage, or of the last; without pipeline both are the same."""
    shape, layout, recipe = setup.shape, setup.layout, setup.recipe
    last = layout.pp == 1 or last
    on_stage, _, outside, dense_local, expert_local = stage_parameters(setup, last=last)
    parameters, gradients, optimizer, trainable, host = _states(setup, dense_local, expert_local, outside)
    quantised = 0.0
    if recipe.lora is not None and recipe.lora.quantised:
        quantised = (dense_local + expert_local - outside) * frozen_bytes(recipe, recipe.lora) / shards(layout)[0]

    tokens = recipe.micro_batch * recipe.seq_len / layout.cp
    layer = layer_bytes(shape, layout, recipe, tokens)
    in_flight = micro_batches_in_flight(layout, setup.accumulation, last=last and layout.pp > 1)
    layers, kept = on_stage * in_flight, 0.0
    if recipe.checkpointing == "full":
        split = layout.tp if layout.sequence_parallel else 1
        kept = layers * tokens * shape.hidden_size * _width(recipe) / split
        layers = 1.0
    if recipe.offload_activations:  # one layer's stay while they are copied
        host += kept if recipe.checkpointing == "full" else (layers - 1) * layer
        layers, kept = 1.0, 0.0
    logits = tokens * shape.vocab_size / layout.tp if last else 0.0
    if recipe.chunked_loss:
        logits /= CHUNKS_OF_LOSS
    return Terms(
        parameters=parameters / GIB,
        gradients=gradients / GIB,
        optimizer=optimizer / GIB,
        trainable=trainable / GIB,
        quantised=quantised / GIB,
        gathered=_gathered(shape, layout, recipe, dense_local + expert_local) / GIB,
        layer=layer / GIB,
        layers=layers,
        kept=kept / GIB,
        logits=logits / GIB,
        host=host / GIB,
    )


class StageParameters(NamedTuple):
    """What one rank of a stage computes with, before any sharding.

    Attributes:
        layers: of the stage.
        tables: of the two tables of the vocabulary that the stage has (a tied one counts once).
        outside: elements of these tables.
        dense: elements outside the experts, the tables included.
        experts: elements of the experts that live here.
    """

    layers: float
    tables: int
    outside: float
    dense: float
    experts: float


def stage_parameters(setup: Setup, *, last: bool) -> StageParameters:
    """Of the first pipeline stage, or of the last; without pipeline both are the same."""
    shape, layout = setup.shape, setup.layout
    first, last = layout.pp == 1 or not last, layout.pp == 1 or last
    layers = -(-shape.layers // layout.pp) if not (last and layout.pp > 1) else shape.layers / layout.pp
    dense, experts = layer_split(shape)
    tables = int(first) + int(last and not (shape.tied and layout.pp == 1))
    outside = tables * shape.vocab_size * shape.hidden_size / layout.tp
    return StageParameters(
        layers=layers,
        tables=tables,
        outside=outside,
        dense=layers * dense / layout.tp + outside,
        experts=layers * experts / (layout.tp * layout.ep),
    )


def layer_split(shape: ModelShape) -> tuple[float, float]:
    """(parameters of a mean layer outside its experts, parameters of its experts)."""
    outside = shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
    mean = max(0.0, (shape.parameters - outside) / shape.layers)
    if shape.experts == 1:
        return mean, 0.0
    one = (3 if shape.gated else 2) * shape.hidden_size * shape.intermediate_size
    experts = min(float(one * shape.experts), 0.95 * mean)
    return mean - experts, experts


def state_bytes(layout: Layout, recipe: Recipe) -> tuple[float, float, float]:
    """Bytes a parameter before sharding: (weights, gradients, optimizer)."""
    moments = MOMENT_BYTES[recipe.optimizer]
    if recipe.precision in ("fp32", "tf32"):
        return 4.0, 4.0, moments
    if not recipe.master_weights:  # pure 16 bits, moments too
        return 2.0, 2.0, moments / 2 if recipe.optimizer != "adamw_8bit" else moments
    if NEAREST_STACK[layout.stack] in ("fsdp", "maxtext"):  # fp32 weights are the master; 16-bit copies are gathered
        return 4.0, 4.0, moments
    if layout.stack == "hf" and layout.sharding == "ddp":  # autocast: fp32 weights and their 16-bit copies
        return 6.0, 4.0, moments
    gradients = 4.0 if recipe.fp32_gradients else 2.0
    if recipe.fp32_gradients and layout.stack in ("nanotron", "megatron_deepspeed"):
        gradients += 2.0  # 16-bit gradients beside the sums
    return 2.0, gradients, 4.0 + moments


def shards(layout: Layout) -> tuple[int, int, int]:
    """How many ranks share (weights, gradients, optimizer states) of one model-parallel part."""
    n = layout.dp * layout.cp
    if layout.sharding == "hsdp":
        n = min(n, layout.per_node)
    everything = layout.sharding in SHARDS_EVERYTHING
    return (
        n if everything else 1,
        n if everything or layout.sharding == "zero2" else 1,
        1 if layout.sharding == "ddp" else n,
    )


def _states(setup: Setup, dense: float, experts: float, outside: float) -> tuple[float, float, float, float, float]:
    """Bytes of (weights, gradients, optimizer), trainable elements, bytes on the host."""
    layout, recipe = setup.layout, setup.recipe
    by_weights, by_gradients, by_optimizer = shards(layout)
    if NEAREST_STACK[layout.stack] == "fsdp" and layout.sharding == "zero2":
        by_weights = by_gradients  # SHARD_GRAD_OP: the fp32 weights are shards
    experts_are = max(1, layout.ep)  # experts are already spread over ep of the ranks that would share them
    w, g, o = state_bytes(layout, recipe)
    if recipe.lora is not None:
        return _adapter_states(setup, dense + experts, outside)
    local = dense / by_optimizer + experts / max(1, by_optimizer / experts_are)
    weights = w * (dense / by_weights + experts / max(1, by_weights / experts_are))
    gradients = g * (dense / by_gradients + experts / max(1, by_gradients / experts_are))
    return _offloaded(layout, weights, gradients, o * local, local)


def _adapter_states(setup: Setup, local: float, outside: float) -> tuple[float, float, float, float, float]:
    """Frozen base weights in `base_bits`, and what is trained beside them."""
    shape, layout, lora = setup.shape, setup.layout, setup.recipe.lora
    assert lora is not None
    by_weights, by_gradients, by_optimizer = shards(layout)
    base = (local - outside) * frozen_bytes(setup.recipe, lora) + outside * table_bytes(layout, setup.recipe, lora)
    adapters = adapter_parameters(shape, lora) * (local - outside) / max(1.0, shape.layers * sum(layer_split(shape)))
    trained = outside if lora.embeddings else 0.0
    beside = adapters * ADAPTER_BYTES + trained * _width(setup.recipe)
    weights, gradients = (base + beside) / by_weights, beside / by_gradients
    optimizer = (adapters + trained) * MOMENT_BYTES[setup.recipe.optimizer] / by_optimizer
    local = (adapters + trained) / by_optimizer
    return _offloaded(layout, weights, gradients, optimizer, local)


def _offloaded(
    layout: Layout, weights: float, gradients: float, optimizer: float, local: float
) -> tuple[float, float, float, float, float]:
    """(weights, gradients, optimizer, trainable, host): what stays on the accelerator, and what goes to the host."""
    host = 0.0
    if layout.offload != "none":
        optimizer, host = 0.0, optimizer
        if layout.sharding in ("zero2", "zero3"):  # the CPU optimizer keeps the gradients it needs
            gradients, host = 0.0, host + gradients
        if layout.offload_parameters:
            weights, gradients, host = 0.0, 0.0, host + weights + gradients
    return weights, gradients, optimizer, local, host


def frozen_bytes(recipe: Recipe, lora: Lora) -> float:
    """Of a weight of the base: in the bits that were asked for, or as wide as what is computed with it."""
    return float(_width(recipe)) if lora.base_bits is None else BASE_BYTES[lora.base_bits]


def table_bytes(layout: Layout, recipe: Recipe, lora: Lora) -> float:
    """Of an element of the embedding and the head, which are not quantised; in fp32 where peft prepares 4 or 8 bits for
    training, and where they are trained themselves as wide as what is computed."""
    if lora.quantised:
        return 4.0 if layout.stack in ("hf", "deepspeed") else float(_width(recipe))
    return float(_width(recipe)) if lora.embeddings else frozen_bytes(recipe, lora)


def adapter_parameters(shape: ModelShape, lora: Lora) -> float:
    """Elements of adapters on every linear layer: rank x (inputs + outputs)."""
    h, q, kv, f = shape.hidden_size, shape.query_size, shape.kv_size, shape.intermediate_size
    attention = (h + q) + 2 * (h + kv) + (q + h)
    mlp = (3 if shape.gated else 2) * (h + f) * shape.experts
    return float(lora.rank * shape.layers * (attention + mlp))


def _width(recipe: Recipe) -> int:
    return 4 if recipe.precision in ("fp32", "tf32") else 2


def layer_bytes(shape: ModelShape, layout: Layout, recipe: Recipe, tokens: float) -> float:
    """What one layer keeps of one micro-batch.

    Of a token: the inputs of both norms, of attention and of the MLP (4 h, split only by sequence parallelism);
    queries, keys, values and attention's output; the MLP's intermediates (gated: both branches and their product), for
    each expert used, with a routed copy of the input. Eager attention keeps its score matrices too.
    """
    h, used = shape.hidden_size, shape.experts_per_token
    whole = 4.0 * h
    split = 2.0 * shape.query_size + 2 * shape.kv_size
    split += (3 if shape.gated else 2) * shape.intermediate_size * used + (2 * h * used if shape.experts > 1 else 0)
    wide = _width(recipe)
    if recipe.precision == "fp8" and layout.stack == "megatron":  # linear layers and the gate keep inputs in one byte
        whole -= h
        split -= (shape.query_size + (3 if shape.gated else 2) * shape.intermediate_size * used) / 2
    total = wide * tokens * (whole / (layout.tp if layout.sequence_parallel else 1) + split / layout.tp)
    if recipe.eager_attention and recipe.checkpointing != "selective":
        eager = EAGER_BYTES + (RECOMPUTED_EAGER_BYTES if recipe.checkpointing == "full" else 0.0)
        total += eager * wide / 2 * tokens * shape.heads * recipe.seq_len / layout.tp
    return total


def micro_batches_in_flight(layout: Layout, accumulation: int, *, last: bool) -> float:
    """Micro-batches whose activations a stage holds at once (1F1B; Narayanan et al. 2021 for the interleaved form)."""
    if layout.pp == 1:
        return 1.0
    after = 0 if last else layout.pp - 1
    chunks = layout.virtual_stages
    if chunks == 1:
        return float(min(accumulation, after + 1))
    return min(accumulation * 1.0, (2 * after + (chunks - 1) * layout.pp + 1) / chunks)


def _gathered(shape: ModelShape, layout: Layout, recipe: Recipe, local: float) -> float:
    """Whole layers while they compute, 16 bits (offload keeps only these), and one layer's or the head's gradients.

    FSDP keeps the whole 16-bit weights between forward and backward with SHARD_GRAD_OP, and under a pipeline, where the
    next micro-batch needs them at once, with their unreduced gradients too. DeepSpeed keeps its buckets instead, and up
    to stage3_max_live_parameters.
    """
    by_weights, by_gradients, by_optimizer = shards(layout)
    if layout.stack == "litgpt" and by_weights > 1:  # every rank loads the whole model before it is sharded
        return local * _width(recipe)
    if NEAREST_STACK[layout.stack] == "fsdp" and recipe.lora is None:
        if layout.pp > 1 and by_weights > 1:
            return local * (_width(recipe) + (4 if recipe.fp32_gradients else 2))
        if layout.sharding == "zero2" and by_gradients > 1:
            return local * _width(recipe)
    if layout.stack in ("hf", "deepspeed") and layout.sharding in ("zero1", "zero2") and by_optimizer > 1:
        trained = local if recipe.lora is None else 0.0
        return 3 * min(trained, BUCKET) * _width(recipe)
    if layout.sharding not in SHARDS_EVERYTHING or (by_weights == 1 and not layout.offload_parameters):
        return 0.0
    wide = _width(recipe)
    _, experts = layer_split(shape)
    layer = (shape.layer_parameters - experts * (1 - 1 / layout.ep)) / layout.tp
    head = shape.vocab_size * shape.hidden_size / layout.tp
    if recipe.lora is not None:
        return max(GATHERED_LAYERS * layer * frozen_bytes(recipe, recipe.lora), head * wide)
    gradient = 4 if recipe.fp32_gradients else wide
    if layout.stack in ("hf", "deepspeed"):  # a module at a time
        return max((min(local, LIVE_PARAMETERS) + min(local, BUCKET)) * wide, head * (wide + gradient))
    if layout.stack == "maxtext":  # the compiler gathers a weight at a time
        return max(layer * (wide + gradient) / MATRICES, head * (wide + gradient))
    return max(layer * (GATHERED_LAYERS * wide + gradient), head * (wide + gradient))
