"""Learning rate as a pure function of the optimizer step: nothing to save, nothing to get out of step on resume."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from warpbeam.job import Train


def learning_rate(
    step: int,
    total_steps: int,
    *,
    peak_lr: float,
    schedule: Literal["cosine", "linear", "constant", "wsd"],
    warmup: float | int = 0.0,
    min_lr_ratio: float = 0.0,
    decay: float = 0.1,
) -> float:
    """The learning rate of optimizer step `step` (the first is 1).

    Warm-up rises linearly and reaches `peak_lr` at its last step; then the schedule falls from there to
    `peak_lr * min_lr_ratio`, which it reaches at `total_steps`. `wsd` (warm-up, stable, decay) stays at the peak until
    the last `decay` of all steps (Hu et al. 2024, with a linear fall). Past the end, the last value.

    Args:
        warmup: a fraction of all steps (float) or a number of steps (int).
        decay: a fraction of all steps; only for `wsd`.
    """
    if step < 1 or total_steps < 1:
        raise ValueError(f"steps count from 1, got step {step} of {total_steps}")
    rising = min(warmup_steps(warmup, total_steps), total_steps)
    if step <= rising:
        return peak_lr * step / rising
    begin = max(rising, 1)
    if schedule == "wsd":
        begin = max(begin, total_steps - max(1, round(decay * total_steps)))
    fallen = _progress(step, begin, total_steps)
    match schedule:
        case "constant":
            share = 1.0
        case "cosine":
            share = (1 + math.cos(math.pi * fallen)) / 2
        case "linear" | "wsd":
            share = 1 - fallen
    return peak_lr * (min_lr_ratio + (1 - min_lr_ratio) * share)


def lr_of(train: Train, step: int, total_steps: int) -> float:
    """`learning_rate` with a job's own settings."""
    return learning_rate(
        step,
        total_steps,
        peak_lr=train.lr,
        schedule=train.schedule,
        warmup=train.warmup,
        min_lr_ratio=train.min_lr_ratio,
        decay=train.decay,
    )


def warmup_steps(warmup: float | int, total_steps: int) -> int:
    """Steps of warm-up: a whole number as it is, a fraction of `total_steps` rounded up."""
    return warmup if isinstance(warmup, int) else math.ceil(warmup * total_steps)


def _progress(step: int, begin: int, end: int) -> float:
    """0 at `begin`, 1 at `end`; a fall of no length has not begun (a run of one step trains at the peak)."""
    if end <= begin:
        return 0.0
    return min(max((step - begin) / (end - begin), 0.0), 1.0)
