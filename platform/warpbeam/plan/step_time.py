"""How long a training step takes: one rank's work, what its waiting and communication add, and how that adds up.

A micro-batch on one pipeline stage is its layers' work (plan/layer_time.py) and the communication that this does not
hide (plan/exposed.py). The step is (m + (p - 1) / v) of the slowest stage's micro-batches (m micro-batches, p stages of
v chunks: Narayanan et al. 2021), the collectives of the whole step, the optimizer and offloading (plan/update_time.py),
and stragglers. `tests/benchmarks/planner_fit_time.py` fits the coefficients on published runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from warpbeam.plan.collectives import Fabric
from warpbeam.plan.exposed import context_parallel_s, data_parallel_s, expert_parallel_s, fabric_of, tensor_parallel_s
from warpbeam.plan.flops import flops_per_token, flops_per_token_6n
from warpbeam.plan.hardware import Chip
from warpbeam.plan.layer_time import layer_time
from warpbeam.plan.rank_share import rank_share
from warpbeam.plan.setup import Setup
from warpbeam.plan.time_coefficients import COEFFICIENTS, Coefficients
from warpbeam.plan.update_time import update_time

_BEST_STEP: Final = 0.75
_LIMITED: Final = ("volta", "ampere", "hopper", "blackwell")
"""Generations whose steps have been measured by many, none above 68% of the peak (6N + 12 L H s): what was fitted apart
may multiply to more, for a card or a precision that no row has (H20, fp32).
"""


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
    share = rank_share(setup)
    layer = layer_time(setup, share, chip, c)
    fabric = fabric_of(chip, layout.per_node, c)
    m, layers_here = setup.accumulation, shape.layers / layout.pp

    tensor = tensor_parallel_s(setup, share, fabric, c)
    context = context_parallel_s(setup, share, layer, fabric, c)
    expert = expert_parallel_s(setup, share, fabric, c)
    layer_all = layer.forward + layer.backward + layer.again + tensor + context + expert
    bubble = _bubble(setup, layer_all, layer.head)

    # Of the whole step from here.
    backward = m * layers_here * (layer.backward + layer.again)
    data = data_parallel_s(setup, share, fabric, c, backward, m * layers_here * layer.forward)
    optimizer, offload = update_time(setup, share, chip, c)
    pipeline = _pipeline(setup, share.tokens, fabric, c)
    compute = m * (layers_here * (layer.forward + layer.backward) + layer.head / layout.pp)
    recompute = m * layers_here * layer.again
    tensor, context, expert = (m * layers_here * part for part in (tensor, context, expert))
    # What an engine loses beside the classes above slows everything a rank does.
    engine = c[f"stack.{layout.stack}"]
    compute, recompute, bubble = compute * engine, recompute * engine, bubble * engine
    tokens = m * layout.dp * recipe.micro_batch * recipe.seq_len
    frozen = recipe.lora is not None
    flops = float(flops_per_token(shape, recipe.seq_len, frozen=frozen)) * tokens
    peak = chip.peak(recipe.precision)
    if chip.generation in _LIMITED:
        compute = max(compute, flops / layout.accelerators / (_BEST_STEP * peak))
    total = compute + recompute + tensor + context + expert + bubble + data + optimizer + offload + pipeline
    straggling = c["straggler.doubling"] * math.log2(max(1, layout.accelerators / min(8, layout.per_node)))
    overhead = total * straggling + c[f"host.{_host(layout.stack)}"]

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
        accelerators=layout.tp * layout.pp * layout.cp * layout.dp,
        flops_6n=float(flops_per_token_6n(shape, frozen=frozen)) * tokens,
        flops_full=flops,
        peak_flops=peak,
    )


def _bubble(setup: Setup, layer_all: float, head: float) -> float:
    """Seconds that an average stage waits: for the pipeline to fill and drain, and for a slower stage."""
    layers, layout, m = setup.shape.layers, setup.layout, setup.accumulation
    if layout.pp == 1:
        return 0.0
    # The last stage has the output head too; a balanced split gives it fewer layers.
    pace = layers / layout.pp * layer_all + head
    useful = (layers * layer_all + head) / layout.pp
    if _balanced(layers, layout.pp):
        pace = max(useful, math.floor(layers / layout.pp) * layer_all)
    return (layout.pp - 1) / layout.virtual_stages * pace + m * (pace - useful)


def _balanced(layers: int, stages: int) -> bool:
    """Whether the embedding and the head count as a layer each in the split, as Megatron's newer recipes do."""
    return layers % stages != 0


def _pipeline(setup: Setup, tokens: float, fabric: Fabric, c: Coefficients) -> float:
    """Seconds of a step in which a stage waits for what its neighbour sends."""
    layout = setup.layout
    if layout.pp == 1:
        return 0.0
    volume = 2.0 * tokens * setup.shape.hidden_size / (layout.tp if layout.sequence_parallel else 1)
    hop = fabric.send(volume, layout.accelerators // layout.pp)
    return c["exposed.pipeline"] * 2 * layout.virtual_stages * (setup.accumulation + layout.pp - 1) * hop


def _host(stack: str) -> str:
    """Whose work between steps."""
    return "hf" if stack in ("hf", "torchtune", "litgpt", "deepspeed") else "megatron"
