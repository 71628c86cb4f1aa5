"""The callbacks that every run has, whoever launched it: TensorBoard files and a loss curve."""

from __future__ import annotations

from typing import Any

from warpbeam.train.callbacks.loss_curve import LossCurve
from warpbeam.train.callbacks.tensorboard import TensorBoard
from warpbeam.train.ranks import Ranks


def standard_callbacks(ranks: Ranks) -> list[Any]:
    """Of this rank: only the first one has any."""
    if not ranks.is_first:
        return []
    return [TensorBoard(), LossCurve()]
