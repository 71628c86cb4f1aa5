"""All rules, one file a family. The order of the families says nothing; kinds.py orders the causes."""

from __future__ import annotations

from warpbeam.doctor.rule import Rule
from warpbeam.doctor.rules import (
    checkpoint,
    collectives,
    container,
    data,
    deepspeed,
    fabric,
    gpu,
    kubernetes,
    memory,
    network,
    numerics,
    ray,
    scheduling,
    software,
    speed,
    storage,
    watched,
)

RULES: tuple[Rule, ...] = (
    *scheduling.RULES,
    *kubernetes.RULES,
    *network.RULES,
    *fabric.RULES,
    *container.RULES,
    *gpu.RULES,
    *memory.RULES,
    *software.RULES,
    *ray.RULES,
    *storage.RULES,
    *checkpoint.RULES,
    *deepspeed.RULES,
    *numerics.RULES,
    *data.RULES,
    *collectives.RULES,
    *speed.RULES,
    *watched.RULES,
)
