"""The few fitted numbers of the memory model, by stack. Data in memory_coefficients.json.

`python -m tests.benchmarks.planner_fit --write` refits them on published runs; nothing else writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from warpbeam.plan.setup import NEAREST_STACK, Stack

FILE: Final = Path(__file__).with_name("memory_coefficients.json")


@dataclass(frozen=True, kw_only=True)
class StackCoefficients:
    """How one stack's allocations differ from the formulas of plan/memory_terms.py.

    Attributes:
        none, selective, full: times the formula's bytes of a layer, by activation checkpointing.
        kept: times the inputs that full checkpointing keeps.
        logit_bytes: for each token and vocabulary entry: logits, fp32 copies and their gradient.
        step_bytes: temporary buffers of the optimizer step for each element it updates.
        gathered: times the formula's whole layers.
        quantised: more than the formula's bytes of a base frozen in 4 or 8 bits, as a share of them.
        fixed_gib: NCCL and workspace buffers of the libraries.
        fragmentation: reserved / allocated - 1.
        p95: 19 of 20 measured peaks are below the prediction times this.
        reuses: the step's temporary buffers take the room of the activations (the larger of both counts).
    """

    none: float = 1.15
    selective: float = 0.6
    full: float = 1.0
    kept: float = 1.1
    logit_bytes: float = 10.0
    step_bytes: float = 4.0
    gathered: float = 1.2
    quantised: float = 0.05
    fixed_gib: float = 1.0
    fragmentation: float = 0.04
    p95: float = 1.2
    reuses: bool = True


@dataclass(frozen=True)
class MemoryCoefficients:
    """All stacks, and where a fit ends.

    Attributes:
        context_gib: what a process holds on a GPU outside the allocator: CUDA context, kernels.
        edge: the expected working memory (all but the states, which are exact) times this is what most likely fits:
            of the published runs called so at most one in twenty ran out, and few that ran are turned away.
        edge_guessed: the same where what activations depend on is not stated (published runs only).
    """

    stacks: Mapping[Stack, StackCoefficients]
    context_gib: float
    edge: float
    edge_guessed: float

    def of(self, stack: Stack) -> StackCoefficients:
        """Those of the stack, or of the one nearest to it."""
        return self.stacks.get(stack) or self.stacks.get(NEAREST_STACK[stack]) or PRIOR


PRIOR: Final = StackCoefficients()


def to_dict(coefficients: MemoryCoefficients) -> dict[str, Any]:
    """What `from_dict` reads."""
    return {
        "context_gib": coefficients.context_gib,
        "edge": coefficients.edge,
        "edge_guessed": coefficients.edge_guessed,
        "stacks": {stack: asdict(numbers) for stack, numbers in coefficients.stacks.items()},
    }


def from_dict(value: Mapping[str, Any]) -> MemoryCoefficients:
    """Reads what `planner_fit` wrote."""
    return MemoryCoefficients(
        stacks={stack: StackCoefficients(**numbers) for stack, numbers in value["stacks"].items()},
        context_gib=value["context_gib"],
        edge=value["edge"],
        edge_guessed=value["edge_guessed"],
    )


@lru_cache(maxsize=1)
def fitted() -> MemoryCoefficients:
    """The coefficients that ship with the package."""
    return from_dict(json.loads(FILE.read_text(encoding="utf-8")))
