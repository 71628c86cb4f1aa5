"""How long a training step takes, from the sizes of its operations: a roofline with measured efficiencies.

A micro-batch on one pipeline stage is a sum of classes of operations, each with its own limit:

- matrix products (m x k by k x n) at the units' peak times an efficiency, longer by what small sizes cost: a product is
  bound by memory where 1/m + 1/n + 1/k is not far below bandwidth / peak (Williams et al. 2009);
- attention's scores and values, causal half with a flash kernel (backward 2.5 x forward, Dao 2023), the whole matrix
  plus its passes through memory without one;
- elementwise operations (norms, activations, residuals, casts, the fp32 loss) at the memory's bandwidth;
- a fixed time a layer for launches and host work, which hides nothing when the products are small;
- collectives by alpha-beta (plan/collectives.py), less the part that overlaps with computation.

The step is (m + (p - 1) / v) of the slowest stage's micro-batches (m micro-batches, p stages of v chunks: Narayanan et
al. 2021), the collectives of the whole step, the optimizer's passes over its states, offload traffic, and stragglers.
`tests/benchmarks/planner_fit_time.py` fits the coefficients (plan/coefficients_time.json) on published runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warpbeam.plan.collectives import Fabric
from warpbeam.plan.hardware import Chip
from warpbeam.plan.model_shape import ModelShape
from warpbeam.plan.setup import Setup

Coefficients = Mapping[str, float]
COEFFICIENTS: Final[Coefficients] = json.loads(
    (Path(__file__).parent / "coefficients_time.json").read_text(encoding="utf-8")
)["coefficients"]

# Bytes the optimizer's step reads and writes for each parameter it holds: fp32 master, gradient, states; new weights.
_OPTIMIZER_BYTES: Final = {"adamw": 30.0, "adamw_8bit": 18.0, "adafactor": 16.0, "sgd": 22.0, "muon": 40.0}
_HOST_ADAM_BYTES: Final = 28.0  # through the host's memory, for each parameter
_BEST_FLASH: Final = 0.85  # of the peak; no kernel has reached more
_BEST_PRODUCT: Final = 0.95
_FLASH_BACKWARD: Final = 2.5  # times the forward's products: scores are computed again
_UNITS: Final = {"fp32": "fp32", "tf32": "tf32", "fp16": "half", "bf16": "half", "fp8": "fp8", "fp4": "fp4"}
# Tensor-parallel collectives: overlapped with the products (Megatron core), in a row (the older Megatron), or partly.
_TENSOR_OVERLAP: Final = {"megatron": "overlapped", "megatron_deepspeed": "in_a_row"}
_ELEMENT_BYTES: Final = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
_TILE: Final = 64  # sizes that are no multiple of it leave part of a tile of the matrix units idle
_REFERENCE_WATTS: Final = {  # of the part each generation's efficiency was measured on, for each TFLOP/s of its peak
    "volta": 300 / 125,
    "turing": 280 / 130.5,
    "ampere": 400 / 312,
    "ampere-pcie": 350 / 71,
    "ada": 450 / 165.2,
    "hopper": 700 / 989.4,
    "blackwell": 1000 / 2250,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, by what they are spent on; the parts sum to `step_s`.

    Attributes:
        compute_s: products and elementwise work, forward and backward.
        recompute_s: forward work done again because activations were not kept.
        tensor_s, context_s, expert_s, pipeline_s, data_s: communication that computation does not hide, by what it
            serves (data: gradients, gathered parameters).
        bubble_s: pipeline stages waiting at the beginning and the end.
        optimizer_s: the update itself.
        offload_s: traffic to the host and the update there.
        overhead_s: stragglers and the host's work between steps.
        tokens: of the whole step.
        flops_6n, flops_full: model FLOP of the whole step by 6N, and by 6N + 12 L H s; recompute is not counted.
        peak_flops: of one accelerator in the recipe's precision.
    """

    compute_s: float
    recompute_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    pipeline_s: float
    data_s: float
    bubble_s: float
    optimizer_s: float
    offload_s: float
    overhead_s: float
    tokens: int
    accelerators: int
    flops_6n: float
    flops_full: float
    peak_flops: float

    @property
    def communication_s(self) -> float:
        """All communication that is not hidden."""
        return self.tensor_s + self.context_s + self.expert_s + self.pipeline_s + self.data_s

    @property
    def step_s(self) -> float:
        return (
            self.compute_s
            + self.recompute_s
            + self.communication_s
            + self.bubble_s
            + self.optimizer_s
            + self.offload_s
            + self.overhead_s
        )

    @property
    def tokens_per_s(self) -> float:
        """Of the whole job."""
        return self.tokens / self.step_s

    @property
    def tokens_per_s_per_accelerator(self) -> float:
        return self.tokens_per_s / self.accelerators

    @property
    def mfu_6n(self) -> float:
        """Share of the peak by 6N, 0 to 1."""
        return self.flops_6n / self.step_s / self.accelerators / self.peak_flops

    @property
    def mfu_full(self) -> float:
        """Share of the peak by 6N + 12 L H s, without causal discount, 0 to 1."""
        return self.flops_full / self.step_s / self.accelerators / self.peak_flops

    def parts(self) -> dict[str, float]:
        """Name -> seconds, in a fixed order; they sum to the step."""
        return {
            "compute": self.compute_s,
            "recompute": self.recompute_s,
            "tensor_communication": self.tensor_s,
            "context_communication": self.context_s,
            "expert_communication": self.expert_s,
            "pipeline_communication": self.pipeline_s,
            "data_communication": self.data_s,
            "bubble": self.bubble_s,
            "optimizer": self.optimizer_s,
            "offload": self.offload_s,
            "overhead": self.overhead_s,
        }


def bubble_fraction(stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Idle time over useful time of a 1F1B schedule: (p - 1) / (v m) (Narayanan et al. 2021, section 2.2)."""
    return (stages - 1) / (virtual_stages * micro_batches)


def step_time(setup: Setup, chip: Chip, coefficients: Coefficients = COEFFICIENTS) -> StepTime:
    """Predict one optimizer step of `setup` on `chip`. Pure; about 30 microseconds."""
    c, shape, layout, recipe = coefficients, setup.shape, setup.layout, setup.recipe
    work = _Work(setup, chip, c)
    fabric = fabric_of(chip, layout.per_node, c)
    tp, pp, cp, dp = layout.tp, layout.pp, layout.cp, layout.dp
    m, v = setup.accumulation, layout.virtual_stages

    # --- one micro-batch through all layers, seconds of one rank of the stage it is on
    lora = recipe.lora is not None
    forward, backward = work.layer_forward, work.layer_backward
    again = {"none": 0.0, "selective": work.selective_again, "full": forward}[recipe.checkpointing]
    head = work.head_time
    layers_here = shape.layers / pp
    tensor = _tensor_parallel(setup, work, fabric, c)
    context = _context_parallel(setup, work, fabric, c)
    expert = _expert_parallel(setup, work, fabric, c)
    layer_all = forward + backward + again + tensor + context + expert
    # The last stage has the output head too; a balanced split gives it fewer layers.
    pace = layers_here * layer_all + head
    if pp > 1 and _balanced(shape.layers, pp):
        pace = max((shape.layers * layer_all + head) / pp, math.floor(layers_here) * layer_all)
    useful = (shape.layers * layer_all + head) / pp
    waiting = (m * (pace - useful)) if pp > 1 else 0.0
    bubble = (pp - 1) / v * pace + waiting

    pipeline = 0.0
    if pp > 1:
        volume = 2.0 * work.tokens * shape.hidden_size / (tp if layout.sequence_parallel else 1)
        hop = fabric.send(volume, layout.accelerators // pp)
        pipeline = c["exposed.pipeline"] * 2 * v * (m + pp - 1) * hop

    # --- once a step, or once a micro-batch for sharded parameters
    data = _data_parallel(setup, work, fabric, c, m * layers_here * (backward + again), m * layers_here * forward)
    optimizer, offload = _optimizer(setup, work, chip, c, m)

    compute = m * (layers_here * (forward + backward) + head / pp)
    recompute = m * layers_here * again
    tensor, context, expert = (m * layers_here * part for part in (tensor, context, expert))
    engine = c[f"stack.{layout.stack}"]
    # What an engine loses beside the classes above slows everything a rank does.
    compute, recompute, bubble = compute * engine, recompute * engine, bubble * engine
    total = compute + recompute + tensor + context + expert + bubble + data + optimizer + offload + pipeline
    straggling = c["straggler.doubling"] * math.log2(max(1, layout.accelerators / min(8, layout.per_node)))
    overhead = total * straggling + c[f"host.{_host(layout.stack)}"]

    tokens = m * dp * recipe.micro_batch * recipe.seq_len
    n_flops = (4 if lora else 6) * shape.active_parameters
    full = n_flops + (8 if lora else 12) * shape.layers * shape.query_size * recipe.seq_len
    return StepTime(
        compute_s=compute,
        recompute_s=recompute,
        tensor_s=tensor,
        context_s=context,
        expert_s=expert,
        pipeline_s=pipeline,
        data_s=data,
        bubble_s=bubble,
        optimizer_s=optimizer,
        offload_s=offload,
        overhead_s=overhead,
        tokens=tokens,
        accelerators=tp * pp * cp * dp,
        flops_6n=float(n_flops) * tokens,
        flops_full=float(full) * tokens,
        peak_flops=chip.peak(recipe.precision),
    )


def fabric_of(chip: Chip, per_node: int, c: Coefficients = COEFFICIENTS) -> Fabric:
    """The links of a chip as collectives achieve them."""
    kind = "tpu" if chip.form == "tpu" else "pcie" if chip.form in ("pcie", "host") else "nvlink"
    domain = chip.link_domain if chip.rack_scale else max(1, min(per_node, chip.link_domain))
    return Fabric(
        domain=domain,
        link=chip.link_bandwidth * c[f"link.{kind}"],
        nic=chip.nic_bandwidth * c["link.nic"],
        link_latency=c["latency.link"],
        nic_latency=c["latency.nic"],
    )


def _balanced(layers: int, stages: int) -> bool:
    """Whether the embedding and the head count as a layer each in the split, as Megatron's newer recipes do."""
    return layers % stages != 0


def _host(stack: str) -> str:
    return "hf" if stack in ("hf", "torchtune", "litgpt", "deepspeed") else "megatron"


class _Work:
    """Seconds of one rank for one layer and one micro-batch, and what they are made of."""

    __slots__ = (
        "attention_forward",
        "bandwidth",
        "expert_parameters",
        "head_time",
        "layer_backward",
        "layer_forward",
        "parameters_here",
        "selective_again",
        "tokens",
        "tokens_sharded",
    )

    def __init__(self, setup: Setup, chip: Chip, c: Coefficients) -> None:
        shape, layout, recipe = setup.shape, setup.layout, setup.recipe
        tp, cp = layout.tp, layout.cp
        hidden, query, kv = shape.hidden_size, shape.query_size, shape.kv_size
        stack = layout.stack
        precision = chip.used_precision(recipe.precision)
        half = chip.used_precision("bf16" if recipe.precision in ("fp8", "fp4") else recipe.precision)
        clock = _clock(chip, c)
        aligned = 1.0 if _aligned(shape, tp) else c["matmul.misaligned"]
        reached = c[f"matmul.{chip.generation}.{_UNITS[precision]}"] * clock
        peak = chip.peak(precision) * min(_BEST_PRODUCT, reached) * aligned
        reached_half = c[f"matmul.{chip.generation}.{_UNITS[half]}"] * clock
        peak_half = chip.peak(half) * min(_BEST_PRODUCT, reached_half) * aligned
        bandwidth = self.bandwidth = chip.memory_bandwidth * c["memory.bandwidth"]
        tokens = self.tokens = recipe.micro_batch * recipe.seq_len / cp
        sharded = self.tokens_sharded = tokens / tp
        element = _ELEMENT_BYTES[precision]

        def product(m: float, n: float, k: float) -> float:
            return 2.0 * m * n * k / peak + c["matmul.size"] * element * (m * k + n * k + m * n) / bandwidth

        # --- products of a layer
        dense = product(tokens, (query + 2 * kv) / tp, hidden) + product(tokens, hidden, query / tp)
        outside = shape.vocab_size * hidden * (1 if shape.tied else 2)
        attention_parameters = 2 * hidden * (query + kv)
        active = max(0.0, (shape.active_parameters - outside) / shape.layers - attention_parameters)
        up = 2 if shape.gated else 1
        mixture = shape.experts > 1
        if mixture:
            ffn, local = float(shape.intermediate_size), shape.experts / layout.ep
            rows = sharded * shape.experts_per_token * layout.ep / shape.experts
            grouped = local * (product(rows, up * ffn, hidden) + product(rows, hidden, ffn))
            routed = shape.experts_per_token * (up + 1) * hidden * ffn
            # shared experts, latent projections: whatever else a token passes through
            rest = max(0.0, active - routed) / hidden
            grouped *= min(1.0, active / routed)
            dense += c["moe.grouped"] * grouped + (product(tokens, rest / tp, hidden) if rest else 0.0)
        else:
            ffn = active / (up + 1) / hidden
            dense += product(tokens, up * ffn / tp, hidden) + product(tokens, hidden, ffn / tp)

        # --- attention over the sequence, one rank's share of heads (and of queries with cp)
        pairs = tokens * recipe.seq_len * query / tp
        if recipe.eager_attention:
            scores = tokens * recipe.seq_len * shape.heads / tp
            rate = peak_half * c["attention.eager"] * (c["matmul.misaligned"] if shape.head_dim % 8 else 1.0)
            forward_attention = 4.0 * pairs / rate + c["attention.passes"] * 2.0 * scores / bandwidth
            backward_attention = 2.0 * forward_attention
        else:
            kernel = "early" if stack == "llm_foundry" else _kernel(stack)
            reached = c[f"attention.{chip.generation}"] * c[f"attention.{kernel}"] * clock
            flash = chip.peak(half) * min(_BEST_FLASH, reached)
            flash *= shape.head_dim / (shape.head_dim + c["attention.head_dim"])
            forward_attention = 2.0 * pairs / flash
            backward_attention = _FLASH_BACKWARD * forward_attention
        self.attention_forward = forward_attention

        # --- elementwise: residual stream and norms, activations, and casts where precisions differ
        stream = (sharded if layout.sequence_parallel or tp == 1 else tokens) * hidden * 8
        inner = tokens / tp * (query + 2 * kv + (up + 1) * (ffn if not mixture else ffn * shape.experts_per_token))
        passes = c[f"elementwise.{_fusion(stack)}"]
        elementwise = passes * 2.0 * (stream + inner) / bandwidth
        if precision in ("fp8", "fp4"):
            elementwise += c["elementwise.cast"] * 2.0 * (stream + inner) / bandwidth
        if mixture:
            elementwise += c["moe.permute"] * 2.0 * sharded * hidden * shape.experts_per_token / bandwidth

        launch = c[f"launch.{_fusion(stack)}"]
        if mixture:
            launch += c["moe.launch"] + c["moe.expert_launch"] * shape.experts / layout.ep
        forward = dense + forward_attention + elementwise
        backward = 2.0 * dense + backward_attention + 2.0 * elementwise
        if recipe.lora is not None:
            # The base has no gradient of its own; adapters are two thin products beside each.
            backward = dense + backward_attention + 2.0 * elementwise
            extra = c["lora.adapters"] * 2.0 * (stream + inner) / bandwidth
            forward, backward = forward + extra, backward + 2.0 * extra
            launch *= 1.0 + c["lora.launch"]
            if recipe.lora.base_bits < 16:
                unpacked = shape.layer_parameters / tp * (2.0 + recipe.lora.base_bits / 8.0)
                unpacking = c["lora.unpack"] * unpacked / bandwidth
                forward, backward = forward + unpacking, backward + unpacking
        # Launches run ahead of long kernels and hold up short ones: a smooth maximum of the two.
        self.layer_forward = _longer(forward, launch)
        self.layer_backward = _longer(backward, 2.0 * launch)
        self.selective_again = forward_attention + c[f"selective.{_kernel(stack)}"] * (dense + elementwise)

        # --- output head and loss, forward and backward, on the last stage
        vocab = shape.vocab_size / tp
        head_products = (2.0 if recipe.lora is not None else 3.0) * (
            2.0 * tokens * vocab * hidden / peak_half
            + c["matmul.size"] * 2.0 * (tokens * hidden + vocab * hidden + tokens * vocab) / bandwidth
        )
        self.head_time = head_products + c[f"head.{_kernel(stack)}"] * 4.0 * tokens * vocab / bandwidth

        # --- parameters this rank computes with
        experts = 0.0
        if mixture:
            experts = (
                max(0.0, float(shape.parameters - shape.active_parameters))
                * shape.experts
                / max(1, shape.experts - shape.experts_per_token)
            )
        self.expert_parameters = experts / layout.ep / layout.pp
        self.parameters_here = (shape.parameters - experts) / tp / layout.pp


def _aligned(shape: ModelShape, tp: int) -> bool:
    """Whether a rank's share of the layer's products fills whole tiles."""
    return not (shape.query_size // tp % _TILE or shape.hidden_size % _TILE or shape.intermediate_size // tp % _TILE)


def _longer(work: float, launch: float) -> float:
    return math.cbrt(work**3 + launch**3)


def _clock(chip: Chip, c: Coefficients) -> float:
    """Clock under load against the generation's reference: a module that may draw less for each FLOP/s runs slower."""
    if not chip.power_w or chip.generation not in _REFERENCE_WATTS:
        return 1.0
    watts = chip.power_w / (max(chip.peak_bf16, chip.peak_fp16) / 1e12)
    return math.pow(watts / _REFERENCE_WATTS[chip.generation], c["power.exponent"])


def _kernel(stack: str) -> str:
    """Whose attention kernels, loss and selective recompute: NVIDIA's, or PyTorch's and what builds on it."""
    return (
        "megatron"
        if stack in ("megatron", "nanotron", "internevo", "megatron_deepspeed")
        else ("maxtext" if stack == "maxtext" else "fsdp")
    )


def _fusion(stack: str) -> str:
    """How far elementwise operations are fused: by hand or compiler, or not at all."""
    if stack in ("hf", "torchtune", "litgpt", "deepspeed"):
        return "eager"
    return "fused"


def _tensor_parallel(setup: Setup, work: _Work, fabric: Fabric, c: Coefficients) -> float:
    """Two all-reduces of the residual stream forward and two backward, a layer; recompute repeats the forward's."""
    layout, recipe = setup.layout, setup.recipe
    if layout.tp == 1:
        return 0.0
    volume = 2.0 * work.tokens * setup.shape.hidden_size
    reductions = 6 if recipe.checkpointing == "full" else 4
    if setup.shape.experts > 1:
        reductions -= reductions // 2  # experts are not split by tp
    exposed = c[f"exposed.tensor.{_TENSOR_OVERLAP.get(layout.stack, 'later')}"]
    return exposed * reductions * fabric.all_reduce(volume, layout.tp)


def _context_parallel(setup: Setup, work: _Work, fabric: Fabric, c: Coefficients) -> float:
    """Keys and values go around the ring, behind the attention of the part at hand (Liu et al. 2023)."""
    layout, shape = setup.layout, setup.shape
    if layout.cp == 1:
        return 0.0
    volume = 2.0 * work.tokens * 2 * shape.kv_size / layout.tp * layout.cp
    ring = fabric.all_gather(volume, layout.cp, layout.tp)
    passes = 4.0 if setup.recipe.checkpointing == "full" else 3.0  # forward, and twice as much backward
    hidden = 3.0 * work.attention_forward
    return max(0.0, passes * ring - hidden) + c["exposed.context"] * passes * ring


def _expert_parallel(setup: Setup, work: _Work, fabric: Fabric, c: Coefficients) -> float:
    """Tokens to their experts and back: two all-to-alls forward, two backward."""
    layout, shape = setup.layout, setup.shape
    if shape.experts <= 1 or layout.ep == 1:
        return 0.0
    domains = -(-layout.ep * layout.tp // fabric.domain)
    # A token goes once to each domain that has one of its experts, then to the experts there.
    copies = min(shape.experts_per_token, layout.ep)
    volume = 2.0 * work.tokens_sharded * shape.hidden_size
    far = min(copies, domains)
    exchanges = 6 if setup.recipe.checkpointing == "full" else 4
    return c["exposed.expert"] * exchanges * fabric.all_to_all(volume * copies, layout.ep, far_share=far / copies)


def _data_parallel(
    setup: Setup, work: _Work, fabric: Fabric, c: Coefficients, backward_s: float, forward_s: float
) -> float:
    """Gradients and gathered parameters that the step's computation does not hide.

    Args:
        backward_s, forward_s: computation of the whole step that collectives may hide behind.
    """
    layout, recipe = setup.layout, setup.recipe
    ranks, m = layout.dp * layout.cp, setup.accumulation
    if ranks == 1:
        return 0.0
    gradient = 4.0 if recipe.fp32_gradients else 2.0
    lora = recipe.lora is not None
    trained_here = _adapter_parameters(setup) / layout.tp / layout.pp if lora else work.parameters_here
    # (parameters here, trained of them, ranks that share them, how far apart those are)
    groups = [(work.parameters_here, trained_here, ranks, layout.tp)]
    if work.expert_parameters:
        apart = max(layout.ep, layout.tp)
        sharing = max(1, ranks * layout.tp // apart)
        groups.append((work.expert_parameters, 0.0 if lora else work.expert_parameters, sharing, apart))
    slow_engine = layout.stack in ("deepspeed", "hf", "megatron_deepspeed")
    if layout.sharding in ("zero3", "fsdp", "hsdp"):
        hide = c["hidden.sharded_deepspeed" if slow_engine else "hidden.sharded"]
        moved = 0.0
        for parameters, trained, sharing, apart in groups:
            inner = min(sharing, layout.per_node) if layout.sharding == "hsdp" else sharing
            gather = fabric.all_gather(2.0 * parameters, inner, apart)
            gather += setup.shape.layers / layout.pp * _latency(fabric, inner, apart)
            reduce = fabric.reduce_scatter(gradient * trained, inner, apart)
            if inner < sharing:
                reduce += fabric.all_reduce(gradient * trained / inner, sharing // inner, layout.per_node)
            moved += m * (2.0 * gather + reduce)  # gathered forward and again backward
        hooks = 0.0
        if slow_engine and setup.shape.experts > 1:
            # DeepSpeed fetches each expert's matrices from hooks in Python: too small and too many to hide.
            fetches = m * (3 if recipe.checkpointing == "full" else 2) * setup.shape.layers / layout.pp
            hooks = c["zero3.expert"] * setup.shape.experts / layout.ep * fetches
        return max(0.0, moved - hide * (forward_s + backward_s)) + c["exposed.sharded"] * moved + hooks
    element = 2.0 if layout.sharding != "ddp" else gradient
    reducing = sum(fabric.reduce_scatter(gradient * trained, sharing, apart) for _, trained, sharing, apart in groups)
    gathering = sum(fabric.all_gather(element * trained, sharing, apart) for _, trained, sharing, apart in groups)
    often = m if layout.sharding == "zero2" and slow_engine else 1
    # Only the last micro-batch's backward hides the reduction; the gather runs into the next step's first forward.
    left = max(0.0, often * reducing - c["hidden.reduce"] * backward_s * often / m)
    left += max(0.0, gathering - c["hidden.reduce"] * forward_s / m)
    return left + c["exposed.data"] * (often * reducing + gathering)


def _latency(fabric: Fabric, ranks: int, stride: int) -> float:
    """Of one small collective: what a layer adds to a gather that is counted as one."""
    here = max(1, min(ranks, fabric.domain // stride))
    return fabric.link_latency * (here - 1) + fabric.nic_latency * (-(-ranks // here) - 1)


def _adapter_parameters(setup: Setup) -> float:
    shape, lora = setup.shape, setup.recipe.lora
    rank = lora.rank if lora is not None else 0
    sizes = 2 * (shape.hidden_size + shape.query_size + shape.hidden_size + shape.kv_size)
    return float(rank * shape.layers * (sizes + 3 * (shape.hidden_size + shape.intermediate_size)))


def _optimizer(setup: Setup, work: _Work, chip: Chip, c: Coefficients, m: int) -> tuple[float, float]:
    """(seconds of the update on the accelerator, seconds of offload traffic and the update on the host)."""
    layout, recipe = setup.layout, setup.recipe
    ranks = layout.dp * layout.cp
    parameters = work.parameters_here + work.expert_parameters
    if recipe.lora is not None:
        parameters = _adapter_parameters(setup) / layout.tp / layout.pp
    sharing = {"ddp": 1, "hsdp": min(ranks, layout.per_node)}.get(layout.sharding, ranks)
    states = parameters / sharing
    offload = 0.0
    if layout.offload_parameters:
        # Each pass over the layers brings the rank's share of the weights from the host.
        offload += (
            2.0
            * m
            * 2.0
            * (work.parameters_here + work.expert_parameters)
            / ranks
            / (chip.host_bandwidth * c["link.host"])
        )
    if recipe.offload_activations:
        kept = 2.0 * work.tokens_sharded * setup.shape.hidden_size * setup.shape.layers / layout.pp
        offload += 2.0 * m * kept / (chip.host_bandwidth * c["link.host"]) * c["exposed.offloaded_activations"]
    if layout.offload == "none":
        return c["optimizer.passes"] * _OPTIMIZER_BYTES[recipe.optimizer] * states / work.bandwidth, offload
    gradient = 4.0 if recipe.fp32_gradients else 2.0
    offload += (gradient + 2.0) * states / (chip.host_bandwidth * c["link.host"])
    offload += _HOST_ADAM_BYTES * states / (c["host.memory_gb_s"] * 1e9)
    if layout.offload == "nvme":
        offload += 24.0 * states / (c["host.nvme_gb_s"] * 1e9 / layout.per_node)
    return 0.0, offload
