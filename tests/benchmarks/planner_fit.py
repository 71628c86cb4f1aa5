"""Refits the planner's memory coefficients on published runs: `python -m tests.benchmarks.planner_fit [FILE.csv]`.

For each stack a handful of non-negative coefficients (plan/memory_coefficients.py) is found by least squares on the
relative error, drawn towards a common prior so that a stack with few runs stays near the formulas. Nothing is fitted to
a single row, a model or a source.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from tests.benchmarks.published import DATA, Reading, read_rows
from warpbeam.plan.memory import dynamic_parts, memory
from warpbeam.plan.memory_coefficients import FILE, PRIOR, MemoryCoefficients, StackCoefficients
from warpbeam.plan.memory_terms import Terms, stage_terms
from warpbeam.plan.setup import NEAREST_STACK, Setup, Stack

NAMES: Final = ("none", "selective", "full", "kept", "logit_bytes", "step_bytes", "gathered", "quantised", "fixed_gib")
# How far a coefficient may move from its prior for the price of one run that is wrong by 100%.
FREEDOM: Final = {
    "none": 3.0,
    "selective": 1.0,
    "full": 6.0,
    "kept": 3.0,
    "logit_bytes": 30.0,
    "step_bytes": 60.0,
    "gathered": 6.0,
    "quantised": 3.0,
    "fixed_gib": 9.0,
}
CONTEXT_GIB: Final = 0.6  # CUDA context and loaded kernels of an A100 or H100; 1.1 on V100 (its page says 1113 MiB)
# reserved / allocated - 1 where both are published (nanotron-bench: 1.4% median); more where layers come and go.
FRAGMENTATION: Final[dict[Stack, float]] = {"nanotron": 0.015, "megatron": 0.04, "fsdp": 0.05, "deepspeed": 0.06}
ROUNDS: Final = 12
QUANTILE: Final = 0.95


def fittable(reading: Reading) -> bool:
    """Scored runs with a measured peak."""
    return reading.setup is not None and reading.peak_gib is not None and reading.scored


@dataclass(frozen=True)
class Example:
    """One run: its terms, and its measured peak as the allocator counts, GiB."""

    setup: Setup
    stages: tuple[Terms, ...]
    reading: Reading

    def allocated_gib(self, fragmentation: float) -> float:
        peak = self.reading.peak_gib or 0.0
        if self.reading.statistic == "allocated":
            return peak
        if self.reading.statistic == "device":
            peak -= CONTEXT_GIB
        return peak / (1 + fragmentation)


def example(reading: Reading) -> Example:
    setup = reading.setup
    assert setup is not None
    stages = [stage_terms(setup, last=True)]
    if setup.layout.pp > 1 and not reading.last_stage:
        stages.append(stage_terms(setup, last=False))
    return Example(setup, tuple(stages), reading)


def fit(readings: Sequence[Reading]) -> MemoryCoefficients:
    """Coefficients of every stack that has runs, and of `p95` from the errors of all of them."""
    by_stack: dict[Stack, list[Example]] = defaultdict(list)
    for reading in readings:
        if fittable(reading) and reading.setup is not None:
            by_stack[reading.setup.layout.stack].append(example(reading))
    stacks = {stack: fit_stack(stack, examples) for stack, examples in sorted(by_stack.items())}
    fitted = MemoryCoefficients(stacks=stacks, context_gib=CONTEXT_GIB, p95=1.0)
    return replace(fitted, p95=p95(readings, fitted))


def p95(readings: Sequence[Reading], fitted: MemoryCoefficients) -> float:
    """The quantile of measured / predicted over the runs whose inputs are complete."""
    ratios = [
        (reading.peak_gib or 0.0) / predicted_peak(reading, fitted)
        for reading in readings
        if fittable(reading) and reading.complete
    ]
    return max(1.0, float(np.quantile(ratios, QUANTILE))) if ratios else 1.15


def predicted_peak(reading: Reading, coefficients: MemoryCoefficients | None = None) -> float:
    """The plan's own function, in the statistic of the row's measurement, GiB."""
    assert reading.setup is not None
    found = memory(reading.setup, 1e9, last_stage=reading.last_stage, coefficients=coefficients)
    return found.measured_as("reserved" if reading.statistic == "unknown" else reading.statistic)


def fit_stack(stack: Stack, examples: Sequence[Example]) -> StackCoefficients:
    """The better of both ways in which the optimizer step's buffers may share room with activations."""
    fragmentation = FRAGMENTATION.get(stack, FRAGMENTATION.get(NEAREST_STACK[stack], 0.05))
    starts = [replace(PRIOR, fragmentation=fragmentation, reuses=reuses) for reuses in (True, False)]
    fits = [_solve(start, examples) for start in starts]
    return min(fits, key=lambda pair: pair[1])[0]


def _solve(start: StackCoefficients, examples: Sequence[Example]) -> tuple[StackCoefficients, float]:
    current = start
    prior = np.array([getattr(start, name) for name in NAMES])
    freedom = np.array([FREEDOM[name] for name in NAMES])
    targets = np.array([one.allocated_gib(start.fragmentation) for one in examples])
    # What rests on assumed inputs says less.
    stated = np.array([1.0 if one.reading.complete else 0.3 for one in examples])
    weights = stated.copy()
    for _ in range(ROUNDS):
        rows, known = zip(*(_linear(one, current) for one in examples), strict=True)
        matrix = np.array(rows) / targets[:, None]
        wanted = 1 - np.array(known) / targets
        a = np.vstack([matrix * np.sqrt(weights)[:, None], np.diag(1 / freedom)])
        b = np.concatenate([wanted * np.sqrt(weights), prior / freedom])
        values = _non_negative(a, b, np.array([getattr(current, name) for name in NAMES]))
        current = replace(current, **{name: round(float(value), 4) for name, value in zip(NAMES, values, strict=True)})
        errors = np.abs(matrix @ values - wanted)
        weights = stated * np.minimum(4.0, 0.1 / np.maximum(errors, 0.02))  # nearer to the mean absolute error
    rows, known = zip(*(_linear(one, current) for one in examples), strict=True)
    values = np.array([getattr(current, name) for name in NAMES])
    errors = np.abs((np.array(rows) @ values + np.array(known)) / targets - 1)
    return current, float(np.average(errors, weights=stated))


def _linear(one: Example, current: StackCoefficients) -> tuple[list[float], float]:
    """(factor of each coefficient, what is known) of the stage that is fullest under the current coefficients."""

    def linear(terms: Terms) -> tuple[list[float], float]:
        checkpointing = one.setup.recipe.checkpointing
        layers = terms.layer * terms.layers
        step = 0.0 if one.setup.layout.offload != "none" else terms.trainable
        used = dynamic_parts(one.setup, terms, replace(current, reuses=False))
        share = [layers * (checkpointing == name) for name in ("none", "selective", "full")]
        row = [*share, terms.kept, terms.logits, step, terms.gathered, terms.quantised, 1.0]
        if current.reuses:
            if used[3] > sum(used[:3]):
                row[:5] = [0.0] * 5
            else:
                row[5] = 0.0
        return row, terms.parameters + terms.gradients + terms.optimizer

    values = [getattr(current, name) for name in NAMES]
    stages = [linear(terms) for terms in one.stages]
    return max(stages, key=lambda stage: stage[1] + float(np.dot(stage[0], values)))


def _non_negative(a: np.ndarray, b: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Least squares with x >= 0, by coordinate descent (a is small and full-rank by the prior's rows)."""
    gram, target, x = a.T @ a, a.T @ b, start.copy()
    for _ in range(300):
        for i in range(len(x)):
            x[i] = max(0.0, x[i] + (target[i] - gram[i] @ x) / gram[i, i])
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=FILE)
    arguments = parser.parse_args()
    found = fit(read_rows(arguments.file))
    content = {
        "fitted_by": "python -m tests.benchmarks.planner_fit",
        "context_gib": found.context_gib,
        "p95": round(found.p95, 4),
        "stacks": {stack: asdict(numbers) for stack, numbers in found.stacks.items()},
    }
    arguments.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(arguments.out.read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
