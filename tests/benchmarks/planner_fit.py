"""Refits the planner's memory coefficients on published runs: `python -m tests.benchmarks.planner_fit [FILE.csv]
[--write]`.

For each stack a handful of non-negative coefficients (plan/memory_coefficients.py) is found by least squares on the
relative error, drawn towards a common prior so that a stack with few runs stays near the formulas. Nothing is fitted to
a single row, a model or a source.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from tests.benchmarks.planner_scores import accelerator_gib, score_memory
from tests.benchmarks.published import DATA, Reading, read_rows
from warpbeam.plan.memory import dynamic_parts, memory
from warpbeam.plan.memory_coefficients import FILE, PRIOR, MemoryCoefficients, StackCoefficients, to_dict
from warpbeam.plan.memory_terms import Terms, stage_terms
from warpbeam.plan.setup import NEAREST_STACK, Setup, Stack

NAMES: Final = ("none", "selective", "full", "kept", "logit_bytes", "step_bytes", "gathered", "quantised", "fixed_gib")
# How far a coefficient may move from its prior for the price of one run that is wrong by 100%.
FREEDOM: Final = {
    "none": 3.0,
    "selective": 0.4,
    "full": 1.0,
    "kept": 1.0,
    "logit_bytes": 30.0,
    "step_bytes": 60.0,
    "gathered": 1.5,
    "quantised": 3.0,
    "fixed_gib": 9.0,
}
CONTEXT_GIB: Final = 0.6  # CUDA context and loaded kernels of an A100 or H100; 1.1 on V100 (its page says 1113 MiB)
# reserved / allocated - 1 where both are published (nanotron-bench: 1.4% median); more where layers come and go.
FRAGMENTATION: Final[dict[Stack, float]] = {"nanotron": 0.015, "megatron": 0.04, "fsdp": 0.05, "deepspeed": 0.06}
ROUNDS: Final = 12
QUANTILE: Final = 0.95
ENOUGH_RUNS: Final = 15
LEAST_P95: Final = 1.05
FIT_RECALL: Final = 0.93
BROKEN_PROMISES: Final = 0.05
STATED_EDGES: Final = (1.02, 1.04, 1.06, 1.08, 1.1)
GUESSED_EDGES: Final = (1.2, 1.4, 1.6, 1.8, 2.0, 2.1, 2.2)
ROOM: Final = 1.04  # a run that fitted must be promised with a margin of that kind
BOUND: Final = 0.6  # what a run that is only known to fit, or not, weighs beside a measured one


def fittable(reading: Reading) -> bool:
    """Scored runs with a measured peak."""
    return reading.setup is not None and reading.peak_gib is not None and reading.scored


def bounds(reading: Reading) -> bool:
    """Scored runs whose peak is only known to be below the accelerator's memory, or above it."""
    stated = "act_ckpt" not in reading.assumed and "seq_len" not in reading.assumed
    return (
        reading.setup is not None
        and reading.peak_gib is None
        and reading.scored
        and stated
        and accelerator_gib(reading) is not None
    )


@dataclass(frozen=True)
class Example:
    """One run: its terms, and its measured peak as the allocator counts, GiB."""

    setup: Setup
    stages: tuple[Terms, ...]
    reading: Reading

    @property
    def stated(self) -> bool:
        """What activations depend on is stated."""
        return not {"micro_batch", "seq_len", "act_ckpt"} & set(self.reading.assumed)

    @property
    def bound(self) -> int:
        """-1: ran, so its peak is at most the target; 1: ran out, so it is more; 0: measured."""
        if self.reading.peak_gib is not None:
            return 0
        return -1 if self.reading.row["fits"] == "yes" else 1

    def allocated_gib(self, fragmentation: float) -> float:
        """The measured peak, or the accelerator's memory, as `memory_allocated` counts."""
        if self.bound:
            room = 1.0 if self.bound > 0 else ROOM
            return ((accelerator_gib(self.reading) or 0.0) / room - CONTEXT_GIB) / (1 + fragmentation)
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
    """Coefficients of every stack that has runs, and where a fit ends."""
    by_stack: dict[Stack, list[Example]] = defaultdict(list)
    for reading in readings:
        if (fittable(reading) or bounds(reading)) and reading.setup is not None:
            by_stack[reading.setup.layout.stack].append(example(reading))
    stacks = {stack: fit_stack(stack, examples) for stack, examples in sorted(by_stack.items())}
    found = with_p95(MemoryCoefficients(stacks, context_gib=CONTEXT_GIB, edge=1.0, edge_guessed=1.0), readings)
    return with_edges(readings, found)


def with_edges(readings: Sequence[Reading], coefficients: MemoryCoefficients) -> MemoryCoefficients:
    """The edges that catch most runs that ran out of memory, while FIT_RECALL of those that ran are let through.

    At equal catch the more careful where inputs are guessed. Of those let through at most BROKEN_PROMISES may have run
    out.
    """
    known = [one for one in readings if one.scored and one.row["fits"] in ("yes", "no")]
    found, best = coefficients, (-1.0, 0.0)
    for stated in STATED_EDGES:
        for guessed in GUESSED_EDGES:
            tried = replace(coefficients, edge=stated, edge_guessed=guessed)
            said = [
                (one.row["fits"], bool(full.likely))
                for one in known
                if (full := score_memory(one, tried)[1]) is not None
            ]
            ran = [fits for fate, fits in said if fate == "yes"]
            failed = [fits for fate, fits in said if fate == "no"]
            if not ran or not failed:
                return replace(coefficients, edge=STATED_EDGES[0], edge_guessed=GUESSED_EDGES[0])
            recall, caught = float(np.mean(ran)), 1 - float(np.mean(failed))
            broken = sum(failed) / max(1, sum(failed) + sum(ran))
            if recall >= FIT_RECALL and broken <= BROKEN_PROMISES and (caught, guessed) > best:
                found, best = tried, (caught, guessed)
    return found


def predicted_peak(reading: Reading, coefficients: MemoryCoefficients | None = None) -> float:
    """The plan's own function, in the statistic of the row's measurement, GiB."""
    assert reading.setup is not None
    found = memory(reading.setup, 1e9, last_stage=reading.last_stage, coefficients=coefficients)
    return found.measured_as("reserved" if reading.statistic == "unknown" else reading.statistic)


def fit_stack(stack: Stack, examples: Sequence[Example]) -> StackCoefficients:
    """The better of both ways in which the optimizer step's buffers may share room with activations."""
    fragmentation = FRAGMENTATION.get(stack, FRAGMENTATION.get(NEAREST_STACK[stack], 0.05))
    # PyTorch's caching allocator gives the step the activations' room; stacks with buffers of their own may not.
    ways = (True,) if stack in ("fsdp", "hf", "deepspeed") else (True, False)
    starts = [replace(PRIOR, fragmentation=fragmentation, reuses=reuses) for reuses in ways]
    fits = [_solve(start, examples) for start in starts]
    return min(fits, key=lambda pair: pair[1])[0]


def with_p95(coefficients: MemoryCoefficients, readings: Sequence[Reading]) -> MemoryCoefficients:
    """Each stack's quantile of measured / predicted, or where it has few runs the median of the others'."""
    ratios: dict[Stack, list[float]] = defaultdict(list)
    for reading in readings:
        if fittable(reading) and reading.setup is not None:
            ratio = (reading.peak_gib or 0.0) / predicted_peak(reading, coefficients)
            ratios[reading.setup.layout.stack].append(ratio)
    known = {stack: float(np.quantile(own, QUANTILE)) for stack, own in ratios.items() if len(own) >= ENOUGH_RUNS}
    usual = statistics.median(known.values()) if known else PRIOR.p95

    def quantile(stack: Stack) -> float:
        return max(LEAST_P95, round(known.get(stack, usual), 3))

    stacks = {stack: replace(numbers, p95=quantile(stack)) for stack, numbers in coefficients.stacks.items()}
    return replace(coefficients, stacks=stacks)


def _solve(start: StackCoefficients, examples: Sequence[Example]) -> tuple[StackCoefficients, float]:
    current = start
    prior = np.array([getattr(start, name) for name in NAMES])
    freedom = np.array([FREEDOM[name] for name in NAMES])
    targets = np.array([one.allocated_gib(start.fragmentation) for one in examples])
    # What rests on assumed inputs says less.
    stated = np.array([BOUND if one.bound else 1.0 if one.stated else 0.3 for one in examples])
    sides = np.array([one.bound for one in examples])
    weights = stated.copy()
    for _ in range(ROUNDS):
        rows, known = zip(*(_linear(one, current) for one in examples), strict=True)
        matrix = np.array(rows) / targets[:, None]
        wanted = 1 - np.array(known) / targets
        a = np.vstack([matrix * np.sqrt(weights)[:, None], np.diag(1 / freedom)])
        b = np.concatenate([wanted * np.sqrt(weights), prior / freedom])
        values = _non_negative(a, b, np.array([getattr(current, name) for name in NAMES]))
        current = replace(current, **{name: round(float(value), 4) for name, value in zip(NAMES, values, strict=True)})
        signed = matrix @ values - wanted
        kept = (sides == 0) | (signed * sides < 0)  # a bound that holds says nothing
        # Nearer to the mean absolute error than to its square.
        weights = kept * stated * np.minimum(4.0, 0.1 / np.maximum(np.abs(signed), 0.02))
    rows, known = zip(*(_linear(one, current) for one in examples), strict=True)
    values = np.array([getattr(current, name) for name in NAMES])
    signed = (np.array(rows) @ values + np.array(known)) / targets - 1
    errors = np.abs(signed) * ((sides == 0) | (signed * sides < 0))
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
    parser.add_argument("--write", action="store_true", help="store the coefficients beside the code")
    arguments = parser.parse_args()
    found = fit(read_rows(arguments.file))
    content = {
        "fitted_by": "python -m tests.benchmarks.planner_fit --write",
        **to_dict(found),
    }
    text = json.dumps(content, indent=2) + "\n"
    if arguments.write:
        FILE.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
