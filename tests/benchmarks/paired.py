"""Statistics of the benchmarks: ratios over paired blocks, their median, and a 95% bootstrap interval of it."""

from __future__ import annotations

import json
import os
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """A ratio over paired blocks. The goal is met when the whole interval lies on its good side.

    Attributes:
        goal: what the median should reach; None for a ratio that is only shown.
        floor: what the interval's worse end should reach; the goal itself unless it is said.
        at_most: small is good.
    """

    name: str
    values: Sequence[float]
    goal: float | None = None
    floor: float | None = None
    at_most: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.values)

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        low, high = self.interval
        floor = self.goal if self.floor is None else self.floor
        return (
            (self.median <= self.goal and high <= floor) if self.at_most else self.median >= self.goal and low >= floor
        )

    def line(self) -> str:
        low, high = self.interval
        text = f"{self.name:<52} {self.median:6.3f}   95% [{low:.3f}, {high:.3f}]   n={len(self.values)}"
        if self.goal is None:
            return text
        sign = "<=" if self.at_most else ">="
        floor = f", interval {sign} {self.floor}" if self.floor is not None else ""
        undecided = low <= (self.goal if self.floor is None else self.floor) <= high and len(self.values) > 1
        verdict = "met" if self.met else "undecided, the interval holds it" if undecided else "NOT met"
        return f"{text}   goal {sign} {self.goal}{floor}: {verdict}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "median": self.median, "interval": self.interval, "met": self.met}


def interval(values: Sequence[float], draws: int = 10_000) -> tuple[float, float]:
    """95% of the medians of resampled blocks; the same values give the same interval."""
    numbers = random.Random(0)
    medians = sorted(statistics.median(numbers.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(draws * 0.025)], medians[int(draws * 0.975)]


def load() -> float:
    """Processes that wanted a core during the last minute, ours among them."""
    return os.getloadavg()[0]


def report(ratios: Sequence[Ratio], details: Mapping[str, Any], *, as_json: bool) -> None:
    """Print everything that was measured: for people, or as one JSON document."""
    facts = {"cores": len(os.sched_getaffinity(0)), "load_at_end": round(load(), 2), **details}
    if as_json:
        print(json.dumps({"ratios": [ratio.to_dict() for ratio in ratios], **facts}))
        return
    for name, value in facts.items():
        print(f"{name}: {value}")
    for ratio in ratios:
        print(ratio.line())
