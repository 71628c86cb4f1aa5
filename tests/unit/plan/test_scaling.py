"""Scaling tables: speed-up, efficiency, and the part that takes the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.plan.setups import question
from warpbeam.plan.answer import answer
from warpbeam.plan.forecast import Forecast
from warpbeam.plan.scaling import bars, scaling, table

ONE: Forecast = replace(answer(question()).chosen, fits=True)


def at(seconds: float, *, tokens: int = 1000, fits: bool = True, **parts: float) -> Forecast:
    return replace(
        ONE, step_s=seconds, tokens=tokens, fits=fits, time_parts={"compute": seconds - sum(parts.values())} | parts
    )


def test_five_workers_are_not_five_times_as_fast() -> None:
    """64 rows on 5 workers: 65 are computed, and the gradients' exchange is not hidden."""
    found = {1: at(10.0), 5: at(10 / 3.88, tokens=1015, data_communication=0.4)}
    rows = scaling([5, 1], 1000, found.get)
    assert [row.accelerators for row in rows] == [1, 5]
    assert rows[0].efficiency == 1
    assert rows[1].speed_up == pytest.approx(3.88)
    assert rows[1].efficiency == pytest.approx(3.88 / 5)
    assert rows[1].limit.startswith("exposed communication (1")


def test_ranks_of_a_cpu_pool_share_its_cores() -> None:
    """Twice the ranks of half the cores are no faster, and that is why: not that products are smaller."""
    found = {1: at(2.0), 2: at(2.0)}
    assert scaling([1, 2], 1000, found.get)[1].limit == "less work for each: smaller products (50%)"
    shared = scaling([1, 2], 1000, found.get, cores_shared=True)[1].limit
    assert shared == "ranks share the pool's cores: fewer for each (50%)"


def test_padding_is_named() -> None:
    found = {4: at(1.0), 5: at(1.0, tokens=1250)}
    assert scaling([4, 5], 1000, found.get)[1].limit.startswith("padding: the batch does not divide (20%)")


def test_the_base_is_the_smallest_that_fits() -> None:
    found = {2: replace(at(9.0, fits=False), likely=False), 4: at(4.0), 8: at(2.0)}
    rows = scaling([2, 4, 8, 3], 1000, found.get)
    assert [row.efficiency for row in rows] == [None, None, 1.0, 1.0]
    assert [row.limit for row in rows] == ["does not fit", "no legal layout of this batch", "-", "-"]


def test_table_and_plot() -> None:
    rows = scaling([1, 2, 3], 1000, {1: at(2.0), 2: at(1.25, bubble=0.25)}.get)
    lines = table(rows)
    assert lines[0].split() == [
        "ACCELERATORS",
        "STEP",
        "TOKENS/S",
        "SPEED-UP",
        "EFFICIENCY",
        "FITS",
        "STRATEGY",
        "LIMIT",
    ]
    assert "1.60x" in lines[2]
    assert lines[2].endswith("pipeline bubble (20%)")
    assert lines[3].endswith("no legal layout of this batch")
    plot = bars(rows)
    assert plot[0] == "1 |" + 40 * "#" + "| 100%"
    assert plot[1] == "2 |" + 32 * "#" + 8 * "." + "| 80%"
    assert plot[2] == "3 |"


def test_more_than_linear_is_explained() -> None:
    """One accelerator had to recompute; two have the memory not to."""
    short = replace(at(4.0, recompute=1.0), checkpointing="full")
    rows = scaling([1, 2], 1000, {1: short, 2: replace(at(1.55, overhead=0.05), checkpointing="none")}.get)
    assert rows[1].efficiency is not None
    assert rows[1].efficiency > 1
    assert rows[1].limit == "more than linear: less recomputing (25%), as there is more memory than at 1"


def test_the_micro_batch_is_called_so() -> None:
    lines = table(scaling([1], 1000, {1: at(2.0)}.get))
    assert "zero" in lines[1]
    assert f"micro-batch {ONE.micro_batch}" in lines[1]
