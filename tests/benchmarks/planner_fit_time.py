"""Refits the time model (plan/step_time.py) on published runs, and says how well it predicts rows it has not seen.

    python -m tests.benchmarks.planner_fit_time [FILE.csv] [--write] [--folds] [--sources]

Least squares on the logarithm of tokens per second, each residual bent down beyond 15% (pseudo-Huber) so that mistakes
in a table do not steer; a weak prior holds every coefficient near the value a person would guess, so that one that the
data do not see keeps it. `--folds`: five-fold, rows of every source held out in turn; `--sources`: whole sources.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from tests.benchmarks.published import DATA, read_rows
from tests.benchmarks.published_speed import Speed, read_speed
from warpbeam.plan import time_coefficients
from warpbeam.plan.step_time import step_time

LEFT_OUT: Final = DATA.with_name("left_out.json")
TARGET: Final = time_coefficients.FILE
BEND: Final = 0.15  # of the logarithm
SOURCE_POWER: Final = 0.5  # a source of n rows weighs n ** 0.5

# Name -> (what a person would guess, how far off that may be: a standard deviation of its logarithm).
PRIORS: Final[dict[str, tuple[float, float]]] = {
    # Share of the peak that large matrix products reach, by architecture and units (half: bf16 and fp16).
    **{f"matmul.{name}": (value, 0.15) for name, value in {
        "volta.half": 0.65, "volta.fp32": 0.8, "turing.half": 0.5, "turing.fp32": 0.8,
        "ampere.half": 0.82, "ampere.tf32": 0.75, "ampere.fp32": 0.85,
        "ampere-pcie.half": 0.75, "ampere-pcie.tf32": 0.7, "ampere-pcie.fp32": 0.8,
        "ada.half": 0.75, "ada.fp8": 0.6, "ada.tf32": 0.7, "ada.fp32": 0.8,
        "hopper.half": 0.75, "hopper.fp8": 0.65, "hopper.tf32": 0.7, "hopper.fp32": 0.8,
        "blackwell.fp8": 0.65, "blackwell.fp4": 0.5, "blackwell.tf32": 0.7, "blackwell.fp32": 0.8,
        "blackwell-pcie.half": 0.75, "blackwell-pcie.fp8": 0.6, "blackwell-pcie.fp4": 0.5,
        "blackwell-pcie.tf32": 0.7, "blackwell-pcie.fp32": 0.8, "cdna2.half": 0.55, "cdna2.fp32": 0.6,
        "cdna3.half": 0.55, "cdna3.fp8": 0.45, "cdna3.tf32": 0.5, "cdna3.fp32": 0.6,
        "cdna4.half": 0.55, "cdna4.fp8": 0.45, "cdna4.fp4": 0.4, "cdna4.fp32": 0.6,
        "tpu.half": 0.8, "tpu.fp32": 0.8, "cpu.fp32": 0.5,
    }.items()},
    "matmul.blackwell.half": (0.75, 0.03),  # few rows, of mixtures: held near what dense products reach
    # Of that, where a size is no multiple of 64.
    "matmul.misaligned": (0.7, 0.2),
    # Share of the half-precision peak that a flash kernel reaches on the causal half; by whose kernel, a factor.
    **{f"attention.{name}": (value, 0.2) for name, value in {
        "volta": 0.4, "turing": 0.4, "ampere": 0.6, "ampere-pcie": 0.6, "ada": 0.6, "hopper": 0.5, "blackwell": 0.5,
        "blackwell-pcie": 0.5, "cdna2": 0.3, "cdna3": 0.35, "cdna4": 0.35, "tpu": 0.6, "cpu": 0.5,
    }.items()},
    "attention.megatron": (1.2, 0.15),
    "attention.fsdp": (0.8, 0.15),
    "attention.maxtext": (1.0, 0.15),
    "attention.early": (0.6, 0.25),
    # Head size at which half of it is left; share of a product that batched score products reach; passes of scores.
    "attention.head_dim": (20.0, 0.5),
    "attention.eager": (0.6, 0.3),
    "attention.passes": (10.0, 0.5),
    # Traffic of a product over the least it could be (tiles are read again), and share of the bandwidth reached.
    "matmul.size": (1.5, 0.5),
    "memory.bandwidth": (0.8, 0.05),
    # Passes through memory over activations, of a layer forward; casts to fp8 more; over fp32 logits, all in all.
    "elementwise.fused": (1.5, 0.5),
    "elementwise.eager": (3.0, 0.5),
    "elementwise.cast": (1.0, 0.7),
    "head.megatron": (8.0, 0.25),
    "head.fsdp": (6.0, 0.4),
    "head.maxtext": (4.0, 0.4),
    # Seconds of a layer forward below which nothing is faster.
    "launch.fused": (3e-4, 0.7),
    "launch.eager": (8e-4, 0.7),
    # Grouped products over dense ones; passes for sorting tokens; seconds of a layer more, and for each local expert.
    "moe.grouped": (1.3, 0.4),
    "moe.permute": (8.0, 0.7),
    "moe.launch": (5e-4, 0.7),
    "moe.expert_launch": (5e-5, 0.7),
    # Passes for adapters; launches more, as a share; passes for unpacking a quantized base.
    "lora.adapters": (1.0, 0.7),
    "lora.launch": (0.5, 0.7),
    "lora.unpack": (5.0, 0.7),
    # Share of a layer forward, beside attention, that "selective" computes again.
    "selective.megatron": (0.02, 1.0),
    "selective.fsdp": (0.45, 0.15),
    "selective.maxtext": (0.45, 0.25),
    # Clock over power, where a module may draw less for each FLOP/s than the generation's reference.
    "power.exponent": (0.4, 0.5),
    # Share of the links' bandwidth that collectives reach, and seconds of a hop.
    "link.nvlink": (0.75, 0.15),
    "link.pcie": (0.5, 0.3),
    "link.tpu": (0.7, 0.3),
    "link.nic": (0.75, 0.3),
    "link.host": (0.6, 0.3),
    "latency.link": (5e-6, 0.5),
    "latency.nic": (1.5e-5, 0.5),
    # Share of communication that is never hidden, whatever there is to hide behind.
    "exposed.tensor.in_a_row": (0.9, 0.1),
    "exposed.tensor.later": (0.6, 0.2),
    "exposed.tensor.overlapped": (0.4, 0.4),
    "exposed.context": (0.1, 0.7),
    "exposed.expert": (0.7, 0.5),
    "exposed.pipeline": (0.3, 0.7),
    "exposed.data": (0.1, 0.7),
    "exposed.sharded": (0.05, 0.7),
    "exposed.offloaded_activations": (0.3, 0.7),
    # Share of the computation that communication of parameters and gradients can hide behind.
    "hidden.sharded": (0.9, 0.2),
    "hidden.sharded_deepspeed": (0.5, 0.4),
    "hidden.reduce": (0.7, 0.4),
    # Seconds of an expert that DeepSpeed gathers.
    "zero3.expert": (1e-3, 0.7),
    # Over one pass through the states; GB/s of a rank's share of host memory and a node's disks; seconds of a step.
    "optimizer.passes": (1.5, 0.5),
    "host.memory_gb_s": (20.0, 0.5),
    "host.nvme_gb_s": (8.0, 0.5),
    "host.megatron": (0.02, 0.3),
    "host.hf": (0.05, 0.3),
    # Share of the step, for each doubling of the nodes; what an engine loses beside all this.
    "straggler.doubling": (0.005, 0.7),
    **{f"stack.{name}": (value, 0.1) for name, value in {
        "deepspeed": 1.1, "fsdp": 1.0, "megatron": 1.0, "maxtext": 1.0, "hf": 1.1, "megatron_deepspeed": 1.05,
        "nanotron": 1.1, "internevo": 1.05, "litgpt": 1.1, "torchtune": 1.1,
        "llm_foundry": 1.0,
    }.items()},
}  # fmt: skip

NAMES: Final = tuple(PRIORS)
# What is a share of a datasheet's figure, or of a time, lies between 0 and 1: its odds are fitted, not itself.
SHARES: Final = ("matmul.", "link.", "exposed.", "hidden.", "memory.", "attention.")
_NO_SHARES: Final = ("matmul.size", "attention.head_dim", "attention.passes", "attention.megatron", "attention.fsdp",
                     "attention.maxtext", "attention.early")  # fmt: skip
_SHARE: Final = np.array([name.startswith(SHARES) and name not in _NO_SHARES for name in NAMES])
_VALUES: Final = np.array([value for value, _ in PRIORS.values()])
_GUESS: Final = np.log(np.where(_SHARE, _VALUES / np.where(_SHARE, 1 - _VALUES, 1), _VALUES))
# A spread is given of the logarithm; near 1 the odds spread further than the value.
_SPREAD: Final = np.array([spread for _, spread in PRIORS.values()]) / np.where(_SHARE, 1 - _VALUES, 1)


def to_coefficients(theta: np.ndarray) -> dict[str, float]:
    """Fitted numbers (logarithms; of odds for shares) -> coefficients by name."""
    grown = np.exp(theta)
    return dict(zip(NAMES, np.where(_SHARE, grown / (1 + grown), grown).tolist(), strict=True))


def from_coefficients(coefficients: Mapping[str, float]) -> np.ndarray:
    """The inverse; a coefficient that is not there takes its guess."""
    values = np.array([coefficients.get(name, PRIORS[name][0]) for name in NAMES])
    values = np.where(_SHARE, np.clip(values, 1e-4, 0.995), values)
    return np.log(np.where(_SHARE, values / np.where(_SHARE, 1 - values, 1), values))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=DATA)
    parser.add_argument("--write", action="store_true", help="store the coefficients beside the code")
    parser.add_argument("--folds", action="store_true")
    parser.add_argument("--sources", action="store_true")
    options = parser.parse_args(arguments)
    rows = measured_rows(options.file)
    fitted = fit(rows)
    print(f"{len(rows)} rows, {len(NAMES)} coefficients")
    report("fitted on all", [(row, error(row, fitted)) for row in rows], by_source=True)
    for name, value in to_coefficients(fitted).items():
        if abs(math.log(value / PRIORS[name][0])) > 0.02:
            print(f"  {name:34s} {value:10.4g}  (guess {PRIORS[name][0]:.4g})")
    if options.write:
        write(fitted)
    if options.folds:
        report("five-fold, rows unseen", held_out(rows, fold_of(rows), fitted), by_source=True)
    if options.sources:
        sources = [row.reading.source for row in rows]
        without = {source: without_group(rows, sources, source, fitted) for source in dict.fromkeys(sources)}
        found = [(row, error(row, without[row.reading.source])) for row in rows]
        report("leave one source out", found, by_source=True)
        if options.write:
            stored = json.loads(LEFT_OUT.read_text(encoding="utf-8")) if LEFT_OUT.exists() else {"memory": {}}
            LEFT_OUT.write_text(
                json.dumps(stored | {"time": moved(fitted, without)}, indent=1) + "\n", encoding="utf-8"
            )


def measured_rows(path: Path) -> list[Speed]:
    """Rows that state a speed and their accelerators, and may be scored."""
    speeds = [read_speed(reading) for reading in read_rows(path) if reading.scored and reading.row["gpus"]]
    return [speed for speed in speeds if speed is not None and speed.tokens_per_s]


def fold_of(rows: Sequence[Speed], folds: int = 5) -> list[str]:
    """Every fifth row of each source, in the file's order."""
    seen: dict[str, int] = {}
    found = []
    for row in rows:
        seen[row.reading.source] = seen.get(row.reading.source, -1) + 1
        found.append(str(seen[row.reading.source] % folds))
    return found


def held_out(rows: Sequence[Speed], groups: Sequence[str], start: np.ndarray) -> list[tuple[Speed, float]]:
    """Each row's error with coefficients fitted without its group."""
    found = []
    for group in dict.fromkeys(groups):
        coefficients = without_group(rows, groups, group, start)
        found += [(row, error(row, coefficients)) for row, own in zip(rows, groups, strict=True) if own == group]
    return found


def without_group(rows: Sequence[Speed], groups: Sequence[str], group: str, start: np.ndarray) -> np.ndarray:
    """A fit that has not seen one group's rows."""
    return fit([row for row, own in zip(rows, groups, strict=True) if own != group], start, steps=8)


def predicted(row: Speed, theta: np.ndarray) -> float:
    """Tokens per second and accelerator."""
    return step_time(row.setup, row.chip, to_coefficients(theta)).tokens_per_s_per_accelerator


def error(row: Speed, theta: np.ndarray) -> float:
    """Predicted over measured, less one."""
    assert row.tokens_per_s is not None
    return predicted(row, theta) / row.tokens_per_s - 1


def fit(rows: Sequence[Speed], start: np.ndarray | None = None, steps: int = 25) -> np.ndarray:
    """Levenberg-Marquardt on bent residuals; the logarithms of the coefficients."""
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row.reading.source] = sizes.get(row.reading.source, 0) + 1
    weights = np.array([sizes[row.reading.source] ** (SOURCE_POWER - 1) for row in rows])
    weights *= len(rows) / weights.sum()
    target = np.log([row.tokens_per_s or 1.0 for row in rows])

    def residuals(theta: np.ndarray) -> np.ndarray:
        c = to_coefficients(theta)
        own = [step_time(row.setup, row.chip, c).tokens_per_s_per_accelerator for row in rows]
        return np.log(own) - target

    return _levenberg_marquardt(residuals, weights, _GUESS.copy() if start is None else start.copy(), steps)


def _levenberg_marquardt(
    residuals: Callable[[np.ndarray], np.ndarray], weights: np.ndarray, theta: np.ndarray, steps: int
) -> np.ndarray:
    def cost(r: np.ndarray, at: np.ndarray) -> float:
        data = weights * 2 * (np.sqrt(1 + (r / BEND) ** 2) - 1)
        return float(data.sum() + (((at - _GUESS) / _SPREAD) ** 2).sum())

    damping, r = 1e-2, residuals(theta)
    active = list(range(len(theta)))
    for _ in range(steps):
        jacobian = np.zeros((len(r), len(theta)))
        for index in active:
            moved = theta.copy()
            moved[index] += 1e-4
            jacobian[:, index] = (residuals(moved) - r) / 1e-4
        active = [index for index in active if jacobian[:, index].any()]  # the rest no row touches
        bent = weights / BEND**2 / np.sqrt(1 + (r / BEND) ** 2)
        normal = jacobian.T @ (jacobian * bent[:, None]) + np.diag(1 / _SPREAD**2)
        gradient = jacobian.T @ (bent * r) + (theta - _GUESS) / _SPREAD**2
        before = cost(r, theta)
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            tried = theta + np.clip(step, -0.5, 0.5)
            r_tried = residuals(tried)
            if cost(r_tried, tried) < before:
                break
            damping *= 4
        else:
            return theta
        gained = before - cost(r_tried, tried)
        theta, r, damping = tried, r_tried, damping / 3
        if gained < 1e-3 * before:
            break
    return theta


def report(title: str, errors: Sequence[tuple[Speed, float]], *, by_source: bool) -> None:
    """Median and mean absolute error, and the median signed one, overall and by source."""
    absolute = [abs(own) for _, own in errors]
    print(f"{title}: n={len(errors)} median {statistics.median(absolute):.1%} mean {statistics.mean(absolute):.1%}")
    groups: dict[str, list[float]] = {}
    for row, own in errors:
        groups.setdefault(row.reading.source, []).append(own)
    if by_source:
        for source, own in sorted(groups.items(), key=lambda item: -len(item[1])):
            median = statistics.median(abs(e) for e in own)
            print(f"  {source:22s} n={len(own):4d} median {median:6.1%} bias {statistics.median(own):+.1%}")
        medians = [statistics.median(abs(e) for e in own) for own in groups.values()]
        print(f"  median of the sources' medians {statistics.median(medians):.1%}")


def write(theta: np.ndarray) -> None:
    """Store the coefficients with the command that made them."""
    content = {
        "about": "Fitted by `python -m tests.benchmarks.planner_fit_time --write`; meanings in that file.",
        "coefficients": _rounded(theta),
    }
    TARGET.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def moved(fitted: np.ndarray, without: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """For planner_accuracy: all coefficients as fitted (""), and for each source those that change without it."""
    base = _rounded(fitted)
    found = {"": base}
    for source, theta in without.items():
        found[source] = {name: value for name, value in _rounded(theta).items() if value != base[name]}
    return found


def without_sources(path: Path) -> dict[str, dict[str, float]]:
    """`moved` of fits that leave each source of a file out in turn; about ten minutes."""
    rows = measured_rows(path)
    fitted, sources = fit(rows), [row.reading.source for row in rows]
    return moved(fitted, {own: without_group(rows, sources, own, fitted) for own in dict.fromkeys(sources)})


def _rounded(theta: np.ndarray) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in to_coefficients(theta).items()}


if __name__ == "__main__":
    main()
