"""Communication that computation does not hide, by what it serves: tensor, context, expert and data parallelism.

Each collective takes what plan/collectives.py says; a fitted share of it can never be hidden, and what is left hides
behind the work that runs beside it. Seconds of one rank.
"""

from __future__ import annotations

from typing import Final

from warpbeam.plan.collectives import Fabric
from warpbeam.plan.hardware import Chip
from warpbeam.plan.layer_time import LayerTime
from warpbeam.plan.rank_share import RankShare
from warpbeam.plan.setup import Setup
from warpbeam.plan.time_coefficients import COEFFICIENTS, Coefficients

# Tensor-parallel collectives: overlapped with the products (Megatron core), in a row (the older Megatron), or partly.
_TENSOR_OVERLAP: Final = {"megatron": "overlapped", "megatron_deepspeed": "in_a_row"}


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


def tensor_parallel_s(setup: Setup, share: RankShare, fabric: Fabric, c: Coefficients) -> float:
    """Two all-reduces of the residual stream forward and two backward, a layer; recompute repeats the forward's."""
    layout, recipe = setup.layout, setup.recipe
    if layout.tp == 1:
        return 0.0
    volume = 2.0 * share.tokens * setup.shape.hidden_size
    reductions = 6 if recipe.checkpointing == "full" else 4
    if setup.shape.experts > 1:
        reductions -= reductions // 2  # experts are not split by tp
    exposed = c[f"exposed.tensor.{_TENSOR_OVERLAP.get(layout.stack, 'later')}"]
    return exposed * reductions * fabric.all_reduce(volume, layout.tp)


def context_parallel_s(setup: Setup, share: RankShare, layer: LayerTime, fabric: Fabric, c: Coefficients) -> float:
    """Keys and values go around the ring, behind the attention of the part at hand (Liu et al. 2023)."""
    layout, shape = setup.layout, setup.shape
    if layout.cp == 1:
        return 0.0
    volume = 2.0 * share.tokens * 2 * shape.kv_size / layout.tp * layout.cp
    ring = fabric.all_gather(volume, layout.cp, layout.tp)
    passes = 4.0 if setup.recipe.checkpointing == "full" else 3.0  # forward, and twice as much backward
    hidden = 3.0 * layer.attention
    return max(0.0, passes * ring - hidden) + c["exposed.context"] * passes * ring


def expert_parallel_s(setup: Setup, share: RankShare, fabric: Fabric, c: Coefficients) -> float:
    """Tokens to their experts and back: two all-to-alls forward, two backward."""
    layout, shape = setup.layout, setup.shape
    if shape.experts <= 1 or layout.ep == 1:
        return 0.0
    domains = -(-layout.ep * layout.tp // fabric.domain)
    # A token goes once to each domain that has one of its experts, then to the experts there.
    copies = min(shape.experts_per_token, layout.ep)
    volume = 2.0 * share.tokens_split * shape.hidden_size
    far = min(copies, domains)
    exchanges = 6 if setup.recipe.checkpointing == "full" else 4
    return c["exposed.expert"] * exchanges * fabric.all_to_all(volume * copies, layout.ep, far_share=far / copies)


def data_parallel_s(
    setup: Setup, share: RankShare, fabric: Fabric, c: Coefficients, backward_s: float, forward_s: float
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
    trained_here = share.trained if lora else share.parameters
    # (parameters here, trained of them, ranks that share them, how far apart those are)
    groups = [(share.parameters, trained_here, ranks, layout.tp)]
    if share.expert_parameters:
        apart = max(layout.ep, layout.tp)
        sharing = max(1, ranks * layout.tp // apart)
        groups.append((share.expert_parameters, 0.0 if lora else share.expert_parameters, sharing, apart))
    slow_engine = layout.stack in ("deepspeed", "hf", "megatron_deepspeed")
    if layout.sharding in ("zero3", "fsdp", "hsdp"):
        hide = c["hidden.sharded_deepspeed" if slow_engine else "hidden.sharded"]
        moved = m * sum(_gathered_twice_s(setup, fabric, gradient, *group) for group in groups)
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


def _gathered_twice_s(
    setup: Setup, fabric: Fabric, gradient: float, parameters: float, trained: float, sharing: int, apart: int
) -> float:
    """Of one micro-batch: parameters gathered forward and again backward, gradients scattered."""
    layout = setup.layout
    inner = min(sharing, layout.per_node) if layout.sharding == "hsdp" else sharing
    gather = fabric.all_gather(2.0 * parameters, inner, apart)
    gather += setup.shape.layers / layout.pp * _latency(fabric, inner, apart)
    reduce = fabric.reduce_scatter(gradient * trained, inner, apart)
    if inner < sharing:
        reduce += fabric.all_reduce(gradient * trained / inner, sharing // inner, layout.per_node)
    return 2.0 * gather + reduce


def _latency(fabric: Fabric, ranks: int, stride: int) -> float:
    """Of one small collective: what a layer adds to a gather that is counted as one."""
    here = max(1, min(ranks, fabric.domain // stride))
    return fabric.link_latency * (here - 1) + fabric.nic_latency * (-(-ranks // here) - 1)
