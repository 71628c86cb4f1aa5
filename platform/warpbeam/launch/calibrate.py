"""From a finished run's record to its pool's correction: what the plan said beside what was measured."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warpbeam.errors import UserError
from warpbeam.job import Job, parse_job
from warpbeam.launch.calibration import read_correction, write_correction
from warpbeam.plan.correction import Correction, Measured, learn
from warpbeam.plan.forecast import STATES, Forecast, forecast
from warpbeam.plan.machine import machine_of
from warpbeam.plan.model_shape import is_known, model_shape
from warpbeam.plan.plan import Plan, plan_setup
from warpbeam.plan.setup import Setup
from warpbeam.record.states import RunState
from warpbeam.storage.layout import run_model_prefix

if TYPE_CHECKING:
    from warpbeam.pool import Pool
    from warpbeam.record.view import RunView

STEP, WAIT = "time_metrics/end_to_end(s)", "time_metrics/data_loading(s)"
PEAKS: Final = ("memory/max_reserved(GiB)", "memory/max_rss(GiB)")
SETTLING: Final = 3
"""Steps left out at the beginning: kernels are chosen and buffers grow there."""
FEWEST: Final = 5


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """What was learned, and from what.

    Attributes:
        compared: the setup that was predicted: the run's own plan.
        trained: parameters of the model that the run wrote; None where it wrote none.
        before: the prediction without any correction.
        after: with the new one.
    """

    measured: Measured
    compared: Setup
    trained: int | None
    before: Forecast
    after: Forecast
    correction: Correction
    path: Path

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "run": self.measured.run,
            "compared": {
                "strategy": self.before.strategy,
                "micro_batch": self.before.micro_batch,
                "activation_checkpointing": self.before.checkpointing,
                "global_batch": self.compared.recipe.global_batch,
                "seq_len": self.compared.recipe.seq_len,
                "parameters": self.before.parameters,
                "trained_parameters": self.trained,
            },
            "measured": {
                "steps": self.measured.steps,
                "step_s": self.measured.step_s,
                "data_wait_s": self.measured.data_wait_s,
                "peak_gib": self.measured.peak_gib,
            },
            "predicted": {"step_s": self.before.step_s, "peak_gib": self.before.memory_gib},
            "corrected": {"step_s": self.after.step_s, "peak_gib": self.after.memory_gib},
            "correction": self.correction.to_dict(),
            "path": str(self.path),
        }


def calibrate(view: RunView, pool: Pool) -> Calibrated:
    """Compare a run's newest attempt with its plan, and keep the correction for `pool`.

    Raises:
        UserError: the run is of another pool, too short, or of a model that the planner cannot count.
    """
    state, _ = view.state()
    if view.attempts() and state is not RunState.DONE:
        raise _not_finished(view.run, state)
    attempt, facts = _newest(view)
    if facts["pool"] != pool.name:
        raise UserError(
            f"run {view.run} ran on pool `{facts['pool']}`, not on `{pool.name}`",
            fix=f"name its pool: --pool {facts['pool']}",
            reason="another_pool",
        )
    # What it predicted then does not matter, and an older version wrote it in other words.
    plan, job = Plan.from_dict(facts["plan"] | {"memory": None, "answer": None}), parse_job(facts["job"])
    config = _model_config(view)
    setup = _as_planned(job, pool, plan, config)
    if setup is None:
        raise UserError(
            f"the planner cannot count the model of run {view.run}",
            why="its shape is of the user's own code or of a family that is not known",
            fix="calibrate with a run of a known family",
            reason="unknown_model_family",
        )
    machine = machine_of(pool, plan.world_size)
    before = forecast(setup, machine)
    measured = measure(view, attempt, context_gib=before.memory_parts["context"])
    states = sum(gib for name, gib in before.memory_parts.items() if name in STATES)
    correction = learn(
        measured,
        pool=pool.name,
        accelerator=pool.accelerator.kind,
        states_gib=states,
        working_gib=before.memory_gib - states,
        step_s=before.step_s,
        on_cpu=machine.is_cpu,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        older=read_correction(pool.name, pool.accelerator.kind),
    )
    after = forecast(setup, machine, correction)
    return Calibrated(
        measured=measured,
        compared=setup,
        trained=model_shape(config).parameters if config is not None and is_known(config) else None,
        before=before,
        after=after,
        correction=correction,
        path=write_correction(correction),
    )


def _not_finished(run: str, state: RunState) -> UserError:
    """What helps depends on whether the run will go on by itself."""
    if state.ended:
        return UserError(
            f"run {run} did not finish: it is {state}",
            why="nothing runs any more, and only a run that came to its end has measured all of it",
            fix=f"bring it to its end (`warpbeam status {run}` says why it ended, `warpbeam resume {run}` goes on from "
            "its checkpoint), or calibrate with a finished run",
            reason="not_finished",
        )
    return UserError(
        f"run {run} is not finished: it is {state}",
        why="its speed and memory may still be those of the start",
        fix=f"calibrate when it is done (`warpbeam wait {run}`), or with a finished run",
        reason="not_finished",
    )


def _as_planned(job: Job, pool: Pool, plan: Plan, written: dict[str, Any] | None) -> Setup | None:
    """The setup as the plan counted it, and as the next plan of the job will.

    The model that the run wrote may be another: a tokenizer that found fewer words than were asked for makes a smaller
    vocabulary. A correction learned on that one would be applied to this one.
    """
    for config in (None, written):
        setup = plan_setup(job, pool, plan, config)
        if setup is not None and setup.shape.parameters == plan.parameters:
            return setup
    return plan_setup(job, pool, plan, written)


def measure(view: RunView, attempt: str, *, context_gib: float) -> Measured:
    """Medians over an attempt's steps and the highest peak of its ranks.

    Args:
        context_gib: what a GPU's allocator does not see, to be added to what it counted.

    Raises:
        UserError: too few steps to say anything.
    """
    rows = view.metrics(attempt)
    settled = [row for row in rows if row.get(STEP) is not None][SETTLING:]
    if len(settled) < FEWEST:
        raise UserError(
            f"run {view.run} has {len(rows)} measured steps, {SETTLING + FEWEST} are needed",
            fix="calibrate with a longer run",
            reason="too_few_steps",
        )
    name = next((peak for peak in PEAKS if rows[-1].get(peak) is not None), None)
    if name is None:
        raise UserError(f"run {view.run} recorded no memory", fix="calibrate with another run", reason="no_memory")
    peak = max(float(row[name]) for row in rows if row.get(name) is not None)
    return Measured(
        run=view.run,
        steps=len(settled),
        step_s=statistics.median(float(row[STEP]) for row in settled),
        data_wait_s=statistics.median(float(row.get(WAIT, 0.0)) for row in settled),
        peak_gib=peak + (context_gib if name == PEAKS[0] else 0.0),
    )


def _newest(view: RunView) -> tuple[str, dict[str, Any]]:
    """The newest attempt whose facts were written."""
    for attempt in reversed(view.attempts()):
        facts = view.facts(attempt)
        if facts is not None:
            return attempt, facts
    raise UserError(
        f"run {view.run} has no attempt that began", fix="`warpbeam status` shows where it stands", reason="no_attempt"
    )


def _model_config(view: RunView) -> dict[str, Any] | None:
    """The configuration that the run wrote beside its checkpoints."""
    key = f"{run_model_prefix(view.team, view.run)}/config.json"
    if view.store.head(key) is None:
        return None
    found: dict[str, Any] = json.loads(view.store.get(key))
    return found
