"""A finished run's record becomes its pool's correction, and the next plan on that pool says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.plan.jobs import job, pool
from warpbeam.errors import UserError
from warpbeam.launch.calibrate import calibrate
from warpbeam.launch.calibration import path_of, read_correction
from warpbeam.plan.plan import make_plan
from warpbeam.record.states import RunState
from warpbeam.record.view import RunView

PEAK, STEP = "memory/max_rss(GiB)", "time_metrics/end_to_end(s)"


class NoStore:
    def head(self, key: str) -> None:
        return None


class FinishedRun:
    """A run's view with the rows it is given."""

    team, run, store = "default", "finished", NoStore()
    at = RunState.DONE

    def __init__(self, rows: list[dict[str, Any]], *, on: str = "planned") -> None:
        self._rows = rows
        asked = job()
        plan = make_plan(asked, pool(), world_size=2)
        self._facts = {"pool": on, "job": asked.to_dict(), "plan": plan.to_dict()}

    def state(self) -> tuple[RunState, str]:
        return self.at, ""

    def attempts(self) -> list[str]:
        return ["one", "two"]

    def facts(self, attempt: str) -> dict[str, Any] | None:
        return self._facts if attempt == "one" else None

    def metrics(self, attempt: str) -> list[dict[str, Any]]:
        return self._rows


def view(rows: list[dict[str, Any]], **more: Any) -> RunView:
    return cast(RunView, FinishedRun(rows, **more))


def rows(count: int = 20, *, step_s: float = 0.1, peak: float = 1.1) -> list[dict[str, Any]]:
    """Three slow steps, then steady ones; memory grows to its peak."""
    return [
        {"step": n, STEP: 1.0 if n < 3 else step_s, PEAK: peak if n == count - 1 else peak / 2} for n in range(count)
    ]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path))


def test_the_next_plan_is_what_was_measured() -> None:
    found = calibrate(view(rows()), pool())
    assert found.measured.step_s == pytest.approx(0.1)
    assert found.measured.peak_gib == pytest.approx(1.1)
    assert found.path == path_of("planned")
    correction = read_correction("planned", "cpu")
    assert correction == found.correction
    plan = make_plan(job(), pool(), world_size=2, correction=correction)
    assert plan.answer is not None
    assert plan.answer.chosen.step_s == pytest.approx(0.1)
    assert plan.answer.chosen.memory_gib == pytest.approx(1.1)
    assert plan.answer.chosen.corrected_by == ("finished",)


class WrittenModel:
    """A run whose tokenizer found fewer words than the job asked for: the model that it wrote is smaller."""

    def head(self, key: str) -> object:
        return key

    def get(self, key: str) -> bytes:
        return json.dumps(job().model.config | {"vocab_size": 64}).encode()  # type: ignore[operator]


def test_the_next_plan_is_what_was_measured_where_the_vocabulary_came_out_smaller() -> None:
    """Like is compared with like: the plan's own model, which the next plan will count again."""
    finished = FinishedRun(rows())
    finished.store = WrittenModel()  # type: ignore[misc, assignment]
    found = calibrate(cast(RunView, finished), pool())
    plan = make_plan(job(), pool(), world_size=2, correction=found.correction)
    assert plan.answer is not None
    assert plan.answer.chosen.step_s == pytest.approx(0.1)
    assert found.before.parameters == plan.parameters
    assert found.trained is not None
    assert found.trained < found.before.parameters
    assert found.to_dict()["compared"]["trained_parameters"] == found.trained


def test_a_gpu_s_allocator_does_not_see_the_context() -> None:
    gpu_rows = [{"step": n, STEP: 0.1, "memory/max_reserved(GiB)": 1.0} for n in range(20)]
    found = calibrate(view(gpu_rows), pool())
    assert found.measured.peak_gib == pytest.approx(1.0 + found.before.memory_parts["context"])


def test_another_accelerator_under_the_same_name_is_not_corrected() -> None:
    calibrate(view(rows()), pool())
    assert read_correction("planned", "H100-SXM") is None
    assert read_correction("other", "cpu") is None
    assert read_correction(None, "cpu") is None


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (view(rows(), on="h100"), "ran on pool `h100`, not on `planned`"),
        (view(rows(7)), "7 measured steps, 8 are needed"),
        (view([{"step": n, STEP: 0.1} for n in range(20)]), "recorded no memory"),
    ],
)
def test_refusals(run: RunView, what: str) -> None:
    with pytest.raises(UserError) as caught:
        calibrate(run, pool())
    assert what in caught.value.what
    assert caught.value.fix


SCHEMA_ALONE = '{"schema": "warpbeam/calibration/v1"}'


@pytest.mark.parametrize("content", ["{", "[]", "3", "{}", SCHEMA_ALONE])
def test_a_broken_file_is_told(content: str) -> None:
    path_of("planned").parent.mkdir(parents=True)
    path_of("planned").write_text(content)
    with pytest.raises(UserError, match="cannot be read") as caught:
        read_correction("planned", "cpu")
    assert "remove it" in caught.value.fix


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.STOPPED, RunState.FAILED, RunState.INTERRUPTED])
def test_only_a_finished_run_teaches(state: RunState) -> None:
    unfinished = FinishedRun(rows())
    unfinished.at = state
    with pytest.raises(UserError, match=f"not finish(ed)?: it is {state}") as caught:
        calibrate(cast(RunView, unfinished), pool())
    helps = "warpbeam wait" if state is RunState.RUNNING else "warpbeam resume"  # nothing to wait for any more
    assert re.findall(r"warpbeam (?:wait|resume)", caught.value.fix) == [helps]


@pytest.mark.parametrize("change", [{"memory_offset_gib": -1e9}, {"data_wait_s": -5}, {"time_factor": 1e300}])
def test_a_file_that_calibrate_cannot_have_written_is_refused(change: dict[str, float]) -> None:
    calibrate(view(rows()), pool())
    path = path_of("planned")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match="cannot be read"):
        read_correction("planned", pool().accelerator.kind)


def test_a_file_nested_without_end_is_refused() -> None:
    calibrate(view(rows()), pool())
    path_of("planned").write_text("[" * 100_000)
    with pytest.raises(UserError, match="cannot be read"):
        read_correction("planned", pool().accelerator.kind)
