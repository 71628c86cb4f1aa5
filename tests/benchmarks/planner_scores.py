"""What the planner says of published rows, and how far that is from what was measured. Pure; printing is elsewhere.

The predictions are those of `warpbeam plan`: plan/memory.py and plan/step_time.py on the row's Setup and chip.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from tests.benchmarks.published import MEGATRON_LIKE, Reading
from tests.benchmarks.published_speed import Speed, in_source_units, read_speed
from warpbeam.errors import UserError
from warpbeam.plan.hardware import find_chip
from warpbeam.plan.memory import MemorySum, memory
from warpbeam.plan.memory_coefficients import MemoryCoefficients, fitted
from warpbeam.plan.memory_terms import GIB, shards
from warpbeam.plan.setup import Setup
from warpbeam.plan.step_time import step_time

UNLIMITED_GIB: Final = 1e9
FATES: Final = ("yes", "no")
# Their published recipes are tuned by those who make the stack.
TUNED_STACKS: Final = ("megatron", "maxtext")
TUNED_FRAMEWORKS: Final = ("torchtitan", "automodel")


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A row with its predictions; None where something it needs is missing.

    Attributes:
        memory: of the rank that the row reports.
        fullest: of the rank that holds most, on the row's accelerator: whether it fits.
    """

    reading: Reading
    memory: MemorySum | None
    fullest: MemorySum | None
    speed: Speed | None
    units: Mapping[str, float] | None
    tokens_per_s: float | None

    @property
    def peak_gib(self) -> float | None:
        """In the statistic that the row reports."""
        return None if self.memory is None else expected_peak(self.reading, self.memory)

    @property
    def fits(self) -> bool | None:
        """The better guess of its fate, `MemorySum.likely`: what `pred_fits` says."""
        return None if self.fullest is None else self.fullest.likely

    @property
    def promised(self) -> bool | None:
        """The wider promise, `MemorySum.fits`, by which the plan chooses."""
        return None if self.fullest is None else self.fullest.fits

    @property
    def skipped_because(self) -> str:
        """What is missing for each prediction that is blank; empty where none is."""
        if self.reading.missing:
            return self.reading.missing
        blank: dict[str, list[str]] = defaultdict(list)
        accelerator = "an accelerator of the catalogue" if self.reading.accelerator else "the accelerator"
        if self.memory is None:
            blank["the number of accelerators (gpus, or tp)"] += ["memory", "fits"]
        elif self.fullest is None:
            blank[accelerator].append("fits")
        if self.units is None:
            blank[accelerator].append("speed")
        return "; ".join(f"{', '.join(names)}: {missing}" for missing, names in blank.items())

    @property
    def covered(self) -> bool:
        """Each thing that the row measured is predicted; where it measured nothing, anything is."""
        row = self.reading
        measured = {
            "memory": (row.peak_gib is not None, self.memory is not None),
            "fits": (row.row["fits"] in FATES, self.fullest is not None),
            "speed": (_states_speed(row), self.units is not None),
        }
        if any(stated for stated, _ in measured.values()):
            return all(predicted for stated, predicted in measured.values() if stated)
        return any(predicted for _, predicted in measured.values())

    @property
    def memory_error(self) -> float | None:
        """Predicted / measured - 1."""
        measured, predicted = self.reading.peak_gib, self.peak_gib
        return predicted / measured - 1 if measured and predicted else None

    @property
    def speed_error(self) -> float | None:
        """Predicted / measured - 1, of tokens per second."""
        if self.speed is None or not self.speed.tokens_per_s or not self.tokens_per_s:
            return None
        return self.tokens_per_s / self.speed.tokens_per_s - 1


def expected_peak(reading: Reading, found: MemorySum) -> float:
    """A prediction in the statistic of a row's measurement, GiB; one that is not named counts as reserved."""
    return found.measured_as("reserved" if reading.statistic == "unknown" else reading.statistic)


def score_row(
    reading: Reading,
    memory_coefficients: MemoryCoefficients | None = None,
    time_coefficients: Mapping[str, float] | None = None,
) -> Scored:
    """Predict one row with the shipped coefficients, or with others."""
    units, tokens = None, None
    found, fullest = score_memory(reading, memory_coefficients)
    speed = read_speed(reading)
    if speed is not None:
        time = step_time(speed.setup, speed.chip, *([time_coefficients] if time_coefficients else []))
        units, tokens = in_source_units(speed, time), time.tokens_per_s_per_accelerator
    return Scored(reading=reading, memory=found, fullest=fullest, speed=speed, units=units, tokens_per_s=tokens)


def score_memory(
    reading: Reading, coefficients: MemoryCoefficients | None = None
) -> tuple[MemorySum | None, MemorySum | None]:
    """A row's memory on the rank that it reports, and on its fullest rank, which says whether it fits.

    A row that leaves open what activations depend on needs more room to be called likely.
    """
    if reading.setup is None or reading.layout_unknown:
        return None, None
    known = coefficients or fitted()
    if reading.guessed and not tuned(reading):
        known = replace(known, edge=known.edge_guessed)
    available, setup, fullest = accelerator_gib(reading), reading.setup, None
    if available is not None:
        setup = settled(reading, setup, available, known)
        fullest = memory(setup, available, coefficients=known)
    found = memory(setup, available or UNLIMITED_GIB, last_stage=reading.last_stage, coefficients=known)
    return found, fullest


def tuned(reading: Reading) -> bool:
    """Whether a row comes from a recipe of the stack's makers."""
    framework = reading.row["framework"].lower()
    own = reading.setup is not None and reading.setup.layout.stack in TUNED_STACKS
    return own or any(name in framework for name in TUNED_FRAMEWORKS)


def settled(
    reading: Reading, setup: Setup, available_gib: float, coefficients: MemoryCoefficients | None = None
) -> Setup:
    """What a recipe that its makers tuned leaves open, chosen as they do: the least splitting and recompute that fits.

    Only where the row states neither; where nothing fits, the setup as it was read.
    """
    layout, stack = setup.layout, setup.layout.stack
    splits, recipes = [layout.tp], [setup.recipe]
    if not reading.row["tp"] and stack in MEGATRON_LIKE:
        whole = layout.accelerators / (layout.pp * layout.cp)
        splits = [tp for tp in (1, 2, 4, 8) if whole % tp == 0 and tp <= layout.per_node]
    if "act_ckpt" in reading.assumed and tuned(reading):
        full = replace(setup.recipe, checkpointing="full")
        recipes += [replace(setup.recipe, checkpointing="selective"), full]
        if stack in TUNED_STACKS:  # these can keep activations on the host
            recipes.append(replace(full, offload_activations=True))
    if len(splits) == len(recipes) == 1:
        return setup
    for tp in splits:
        for recipe in recipes:
            tried = replace(setup, layout=replace(layout, tp=tp), recipe=recipe)
            if memory(tried, available_gib, coefficients=coefficients).likely:
                return tried
    return setup


def accelerator_gib(reading: Reading) -> float | None:
    """Memory of the row's accelerator by the catalogue; None where it is not known."""
    return _catalogue_gib(reading.accelerator)


@cache
def _catalogue_gib(name: str) -> float | None:
    try:
        return find_chip(name).memory_gib if name else None
    except UserError:
        return None


def errors_of(rows: Iterable[Scored], error: Callable[[Scored], float | None]) -> dict[str, float]:
    """n, mape, median_error (both of the absolute relative error) and bias (median signed error) of scored rows."""
    found = [value for row in rows if row.reading.scored and (value := error(row)) is not None]
    if not found:
        return {"n": 0, "mape": None, "median_error": None, "bias": None}
    return {
        "n": len(found),
        "mape": statistics.fmean(abs(value) for value in found),
        "median_error": statistics.median(abs(value) for value in found),
        "bias": statistics.median(found),
    }


def memory_error(row: Scored) -> float | None:
    return row.memory_error


def speed_error(row: Scored) -> float | None:
    return row.speed_error


def coverage(rows: Sequence[Scored]) -> dict[str, Any]:
    """Rows of which everything measured is predicted, and why not for the rest."""
    reasons: dict[str, int] = defaultdict(int)
    for row in rows:
        if not row.covered:
            reasons[row.skipped_because] += 1
    peaks = [row for row in rows if row.reading.peak_gib is not None]
    speeds = [row for row in rows if _states_speed(row.reading)]
    return {
        "rows": len(rows),
        "predicted": sum(row.covered for row in rows),
        "share": _share(rows, lambda row: row.covered),
        "memory": {"rows": len(peaks), "share": _share(peaks, lambda row: row.memory is not None)},
        "speed": {"rows": len(speeds), "share": _share(speeds, lambda row: row.tokens_per_s is not None)},
        "skipped": dict(reasons),
    }


def fit_scores(rows: Iterable[Scored]) -> dict[str, Any]:
    """Recall of both classes and precision of `pred_fits`, and how often it and the wider promise break, over rows
    that say how it went."""
    said = [row for row in rows if row.reading.scored and row.fits is not None]
    fit = [row.fits for row in said if row.reading.row["fits"] == "yes"]
    failed = [row.fits for row in said if row.reading.row["fits"] == "no"]
    called = sum(map(bool, fit)) + sum(map(bool, failed))
    promised = [row.reading.row["fits"] == "no" for row in said if row.promised and row.reading.row["fits"] in FATES]
    return {
        "n_fit": len(fit),
        "n_oom": len(failed),
        "oom_recall": sum(not value for value in failed) / len(failed) if failed else None,
        "fit_recall": sum(map(bool, fit)) / len(fit) if fit else None,
        "fit_precision": sum(map(bool, fit)) / called if called else None,
        "oom_among_called_fitting": sum(map(bool, failed)) / called if called else None,
        "n_promised": len(promised),
        "oom_among_promised": sum(promised) / len(promised) if promised else None,
    }


def by_source(rows: Sequence[Scored], error: Callable[[Scored], float | None]) -> dict[str, dict[str, float]]:
    """`errors_of` each source, the largest first."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for row in rows:
        groups[row.reading.source].append(row)
    found = {source: errors_of(group, error) for source, group in groups.items()}
    return dict(sorted(((s, e) for s, e in found.items() if e["n"]), key=lambda item: -item[1]["n"]))


def states_only_gib(reading: Reading) -> float | None:
    """Baseline: DeepSpeed's estimator, model states alone (ZeRO-2: 4 P + 16 P / n; ZeRO-3: 4 x a layer + 18 P / n)."""
    if reading.setup is None:
        return None
    shape, layout = reading.setup.shape, reading.setup.layout
    local = shape.parameters / (layout.tp * layout.pp)
    if reading.setup.recipe.lora is not None:
        return 2 * local / shards(layout)[0] / GIB
    by_weights, by_gradients, by_optimizer = shards(layout)
    if by_weights > 1:
        total = 4 * shape.layer_parameters / layout.tp + 18 * local / by_weights
    elif by_gradients > 1:
        total = 4 * local + 16 * local / by_gradients
    else:
        total = 4 * local + 12 * local / by_optimizer
    return total / GIB


def states_only(rows: Sequence[Scored]) -> dict[str, Any]:
    """The baseline's memory error and fit recalls."""

    def error(row: Scored) -> float | None:
        predicted, measured = states_only_gib(row.reading), row.reading.peak_gib
        return predicted / measured - 1 if predicted and measured else None

    fits: dict[str, list[bool]] = {"yes": [], "no": []}
    for row in rows:
        need, available = states_only_gib(row.reading), accelerator_gib(row.reading)
        if row.reading.scored and need and available and row.reading.row["fits"] in fits:
            fits[row.reading.row["fits"]].append(need <= available)
    return {
        "memory": errors_of(rows, error),
        "oom_recall": 1 - statistics.fmean(fits["no"]) if fits["no"] else None,
        "fit_recall": statistics.fmean(fits["yes"]) if fits["yes"] else None,
    }


def constant_flops(rows: Sequence[Scored]) -> dict[str, float]:
    """Baseline: the other sources' median FLOP/s (6N) for the chip and precision; else any chip's share of its peak."""
    rates: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)

    def rate(row: Scored) -> float | None:
        if row.speed is None or not row.speed.tokens_per_s or not row.reading.scored:
            return None
        return 6.0 * row.speed.setup.shape.active_parameters * row.speed.tokens_per_s / row.speed.peak_flops

    def key(row: Scored) -> tuple[str, str]:
        assert row.speed is not None
        return row.speed.chip.family, row.speed.setup.recipe.precision

    for row in rows:
        if (value := rate(row)) is not None:
            rates[key(row)].append((row.reading.source, value))
            rates["any", key(row)[1]].append((row.reading.source, value))

    def error(row: Scored) -> float | None:
        if (value := rate(row)) is None:
            return None
        for which in (key(row), ("any", key(row)[1])):
            others = [own for source, own in rates[which] if source != row.reading.source]
            if others:
                return statistics.median(others) / value - 1
        return None

    return errors_of(rows, error)


def _states_speed(reading: Reading) -> bool:
    columns = ("measured_tokens_per_s_per_gpu", "measured_step_s", "measured_tflops_per_gpu", "measured_MFU_pct")
    return any(reading.row[column] for column in columns)


def _share(rows: Sequence[Scored], good: Callable[[Scored], bool]) -> float:
    return sum(map(good, rows)) / len(rows) if rows else 1.0
