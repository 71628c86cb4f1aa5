"""What a run taught makes the prediction equal the measurement, and nothing implausible is learned."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plan.jobs import pool
from tests.unit.plan.setups import recipe, setup
from warpbeam.errors import UserError
from warpbeam.plan.correction import Correction, Measured, learn
from warpbeam.plan.forecast import STATES, Forecast, forecast
from warpbeam.plan.machine import Machine, machine_of
from warpbeam.plan.setup import Setup

GPU = machine_of(pool("H100-SXM", memory_gib=80, nodes=2, per_node=8), 16)
CPU = machine_of(pool(), 2)
TRAINED = setup(recipe_=recipe(checkpointing="full"))


def measured(run: str = "a", **changes: Any) -> Measured:
    return Measured(**{"run": run, "steps": 20, "step_s": 1.0, "data_wait_s": 0.0, "peak_gib": 40.0} | changes)


def learned(what: Measured, machine: Machine, asked: Setup, older: Correction | None = None) -> Correction:
    before = forecast(asked, machine)
    states = sum(gib for name, gib in before.memory_parts.items() if name in STATES)
    return learn(
        what,
        pool="planned",
        accelerator=machine.kind,
        states_gib=states,
        working_gib=before.memory_gib - states,
        step_s=before.step_s,
        on_cpu=machine.is_cpu,
        at="2026-01-01T00:00:00+00:00",
        older=older,
    )


@given(time=st.floats(0.2, 5), memory=st.floats(0.8, 1.5), wait=st.floats(0, 0.5))
@pytest.mark.parametrize("machine", [GPU, CPU])
def test_the_corrected_plan_is_what_was_measured(machine: Machine, time: float, memory: float, wait: float) -> None:
    asked = TRAINED if machine is GPU else setup(accelerators=2, per_node=2, recipe_=recipe(precision="fp32"))
    before = forecast(asked, machine)
    what = measured(step_s=before.step_s * time + wait, data_wait_s=wait, peak_gib=before.memory_gib * memory)
    after = forecast(asked, machine, learned(what, machine, asked))
    assert after.step_s == pytest.approx(what.step_s)
    assert after.memory_gib == pytest.approx(what.peak_gib)
    assert after.corrected_by == ("a",)
    assert sum(after.time_parts.values()) == pytest.approx(after.step_s)


def test_it_carries_over_to_another_setup() -> None:
    """A GPU where everything takes 1.3 times as long: so it will with another micro-batch."""
    before: Forecast = forecast(TRAINED, GPU)
    correction = learned(measured(step_s=1.3 * before.step_s, peak_gib=before.memory_gib), GPU, TRAINED)
    other = setup(recipe_=recipe(micro_batch=2, checkpointing="full"))
    assert forecast(other, GPU, correction).step_s == pytest.approx(1.3 * forecast(other, GPU).step_s)


def test_runs_are_joined_and_the_same_one_replaces_itself() -> None:
    before = forecast(TRAINED, GPU)
    first = learned(measured(step_s=before.step_s, peak_gib=before.memory_gib), GPU, TRAINED)
    assert first.time_factor == pytest.approx(1)
    second = measured("b", step_s=4 * before.step_s, peak_gib=before.memory_gib)
    both = learned(second, GPU, TRAINED, older=first)
    assert both.runs == ("a", "b")
    assert both.time_factor == pytest.approx(2)
    alone = learned(second, GPU, TRAINED)
    assert learned(second, GPU, TRAINED, older=alone) == alone


def test_nothing_implausible_is_learned() -> None:
    before = forecast(TRAINED, GPU)
    with pytest.raises(UserError, match="step time is 100 times the plan's"):
        learned(measured(step_s=100 * before.step_s, peak_gib=before.memory_gib), GPU, TRAINED)


def test_it_survives_json() -> None:
    before = forecast(TRAINED, GPU)
    correction = learned(measured(step_s=before.step_s, peak_gib=before.memory_gib), GPU, TRAINED)
    assert Correction.from_dict(correction.to_dict()) == correction
    with pytest.raises(UserError, match="schema 'v0' cannot be read"):
        Correction.from_dict({"schema": "v0"})
