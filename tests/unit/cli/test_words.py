from __future__ import annotations

from pathlib import Path

import pytest

from warpbeam.cli.failure_words import failure_error
from warpbeam.cli.output import duration, size
from warpbeam.cli.progress import TerminalReporter, training_line
from warpbeam.cli.summary import next_commands, summary_lines, time_line
from warpbeam.errors import InfraError, RunFailed, UserError
from warpbeam.launch.driver import Fate
from warpbeam.launch.failure import Cause
from warpbeam.launch.ray_train import Ending
from warpbeam.launch.watch import Progress
from warpbeam.record.states import RunState


def fate(state: RunState = RunState.FAILED, **changes: object) -> Fate:
    values = {"reason": "", "step": 7, "total_steps": 10, "committed_step": 5, "attempts": 1, "wall_s": 60.0}
    return Fate(state=state, **(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (2.34, "2.3s"), (42.0, "42s"), (95.4, "1m 35s"), (3725.0, "1h 02m"), (200_000.0, "2d 7h")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_sizes() -> None:
    assert (size(12), size(12_300), size(4.7e9), size(2e15)) == ("12 B", "12.3 kB", "4.7 GB", "2000.0 TB")


def test_a_progress_line() -> None:
    progress = Progress(step=20, total_steps=100, loss=2.3456, tokens_per_s=5744.2, eta_s=80)
    assert training_line(progress) == "step 20/100  loss 2.3456  5,744 tokens/s  1m 20s left"


def test_plain_progress_is_rare_and_never_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    with TerminalReporter(now=lambda: clock[0], live=False) as reporter:
        for step in range(1, 60):
            clock[0] += 1
            reporter.training(Progress(step=step, total_steps=60))
        for _ in range(50):
            clock[0] += 1
            reporter.training(Progress(step=59, total_steps=60))
    assert len(capsys.readouterr().err.splitlines()) == 7


def test_where_the_time_went_adds_up() -> None:
    buckets = {"start": 12.0, "compute": 42.0, "data_wait": 0.1, "checkpoint": 6.0}
    assert time_line(buckets) == "compute 42s (70%), start 12s (20%), checkpoint 6.0s (10%)"


def test_a_summary_and_what_to_do_next() -> None:
    rows = [
        {"step": 1, "loss_metrics/global_avg_loss": 7.0, "throughput/global_tps": 100.0},
        {"step": 2, "loss_metrics/global_avg_loss": 5.0, "throughput/global_tps": 300.0},
    ]
    lines = dict(summary_lines("sft", fate(RunState.DONE), rows, []))
    assert lines["loss"] == "7.0000 -> 5.0000"
    assert "MFU" not in lines
    assert len(next_commands("sft", fate(RunState.DONE), "job.yaml")) == 3
    unsaved = next_commands("sft", fate(owner="ml", committed_step=None), "warpbeam run job.yaml")
    assert unsaved[0] == "warpbeam run job.yaml    # mend the cause first; begins anew: nothing was saved yet"
    killed = next_commands("sft", fate(owner="infra", committed_step=20), "warpbeam run job.yaml", " --pool p.yaml")
    assert killed[0] == "warpbeam run job.yaml    # goes on from the newest checkpoint"
    assert killed[1:] == ["warpbeam logs sft --pool p.yaml", "warpbeam status sft --pool p.yaml"]


def test_a_users_exception_shows_the_users_lines_only(tmp_path: Path) -> None:
    frames = [{"file": str(tmp_path / "my.py"), "line": 3, "name": "render", "text": "  return x / 0"}]
    facts = {"rank": 1, "type": "ZeroDivisionError", "message": "division by zero", "frames": frames}
    ending = Ending(Cause.USER_CODE, "rank 1: ZeroDivisionError: division by zero", "f", facts=facts)
    error = failure_error("sft", fate(reason="user_code_failed", owner="ml", ending=ending), tmp_path)
    assert isinstance(error, RunFailed)
    assert error.why.splitlines() == [
        "my.py:3 in render",
        "    return x / 0",
        "ZeroDivisionError: division by zero",
    ]
    assert "warpbeam logs sft" in error.fix


def test_a_users_mistake_found_by_a_worker_stays_one() -> None:
    ours = UserError("line 3 of x.jsonl is broken")
    ending = Ending(Cause.BAD_INPUT, ours.what, "bad", ours)
    assert failure_error("sft", fate(ending=ending), Path()) is ours


def test_an_infra_failure_after_retries() -> None:
    ending = Ending(Cause.NODE_LOST, "rank 3 was lost with its machine", "node")
    error = failure_error("sft", fate(reason="too_many_failures", owner="infra", ending=ending, attempts=4), Path())
    assert isinstance(error, InfraError)
    assert "4 attempts" in error.why
    assert "step 5" in error.fix
