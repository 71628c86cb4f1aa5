"""The optimizer's update, on the accelerator or on the host, and what offloading moves between the two."""

from __future__ import annotations

from typing import Final

from warpbeam.plan.hardware import Chip
from warpbeam.plan.rank_share import RankShare
from warpbeam.plan.setup import Setup
from warpbeam.plan.time_coefficients import Coefficients

# Bytes the optimizer's step reads and writes for each parameter it holds: fp32 master, gradient, states; new weights.
_OPTIMIZER_BYTES: Final = {"adamw": 30.0, "adamw_8bit": 18.0, "adafactor": 16.0, "sgd": 22.0, "muon": 40.0}
_HOST_ADAM_BYTES: Final = 28.0  # through the host's memory, for each parameter


def update_time(setup: Setup, share: RankShare, chip: Chip, c: Coefficients) -> tuple[float, float]:
    """(seconds of the update on the accelerator, seconds of offload traffic and the update on the host), a step."""
    layout, recipe = setup.layout, setup.recipe
    ranks, m = layout.dp * layout.cp, setup.accumulation
    states = share.trained / {"ddp": 1, "hsdp": min(ranks, layout.per_node)}.get(layout.sharding, ranks)
    to_host = chip.host_bandwidth * c["link.host"]
    offload = 0.0
    if layout.offload_parameters:
        # Each pass over the layers brings the rank's share of the weights from the host.
        offload += 2.0 * m * 2.0 * share.all_parameters / ranks / to_host
    if recipe.offload_activations:
        kept = 2.0 * share.tokens_split * setup.shape.hidden_size * setup.shape.layers / layout.pp
        offload += 2.0 * m * kept / to_host * c["exposed.offloaded_activations"]
    if layout.offload == "none":
        on_device = _OPTIMIZER_BYTES[recipe.optimizer] * states / (chip.memory_bandwidth * c["memory.bandwidth"])
        return c["optimizer.passes"] * on_device, offload
    gradient = 4.0 if recipe.fp32_gradients else 2.0
    offload += (gradient + 2.0) * states / to_host
    offload += _HOST_ADAM_BYTES * states / (c["host.memory_gb_s"] * 1e9)
    if layout.offload == "nvme":
        offload += 24.0 * states / (c["host.nvme_gb_s"] * 1e9 / layout.per_node)
    return 0.0, offload
