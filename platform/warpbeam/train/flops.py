"""What a token costs, by the planner's formulas, and what the device could do at most, by its catalogue: MFU."""

from __future__ import annotations

from typing import Any

from warpbeam.errors import UserError
from warpbeam.plan.flops import flops_per_token
from warpbeam.plan.hardware import find_chip
from warpbeam.plan.model_shape import model_shape


def model_flops_per_token(config: Any, parameters: int, seq_len: int) -> float:
    """6N + 12 L H s of a transformers config, as the plan counts it (active parameters of a mixture of experts).

    A family that the planner does not know is counted by all its `parameters`, without attention.
    """
    try:
        return float(flops_per_token(model_shape(config.to_dict()), seq_len))
    except UserError:
        return 6.0 * parameters


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 FLOP/s of an accelerator by the name its driver gives; None where the catalogue lacks it."""
    try:
        return find_chip(device_name).peak("bf16")
    except UserError:
        return None
