"""What every run leaves for the eye: TensorBoard's files, a loss curve, lines on the terminal."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.unit.train.making import context
from warpbeam.train.callbacks.console import Console
from warpbeam.train.callbacks.loss_curve import MAX_POINTS, LossCurve
from warpbeam.train.callbacks.tensorboard import TensorBoard
from warpbeam.train.recipes import lm


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path / "home"))


def test_files_are_on_this_machine_and_in_the_record(tmp_path: Path, tokenizer: Any) -> None:
    ctx = context(tmp_path, tokenizer, evaluated=True, callbacks=[TensorBoard(), LossCurve()])
    lm.train(ctx)
    ctx.finish()
    here = tmp_path / "home/runs/default/made/0001-a"
    record = tmp_path / "store/teams/default/runs/made/record/0001-a"
    for name in ("loss_curve/loss.png", f"tensorboard/{next((here / 'tensorboard').iterdir()).name}"):
        assert (here / name).read_bytes() == (record / name).read_bytes()
    assert (record / "loss_curve/loss.png").read_bytes().startswith(b"\x89PNG")


def test_tensorboard_files_hold_every_number(tmp_path: Path, tokenizer: Any) -> None:
    from tensorboardX.proto.event_pb2 import Event

    ctx = context(tmp_path, tokenizer, callbacks=[TensorBoard()])
    lm.train(ctx)
    ctx.finish()
    path = next((tmp_path / "home/runs/default/made/0001-a/tensorboard").iterdir())
    data, events = path.read_bytes(), []
    while data:  # TFRecord: length (8), its crc (4), data, crc (4)
        length = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    found = {(event.step, value.tag): value.simple_value for event in events for value in event.summary.value}
    for tag in ("loss_metrics/global_avg_loss", "lr", "grad_norm"):
        assert found[6, tag] == pytest.approx(ctx.last_row[tag], rel=1e-6)
    assert {step for step, _ in found} == set(range(1, 7))


def test_the_curve_keeps_a_bounded_number_of_points() -> None:
    curve = LossCurve()
    for step in range(1, 5 * MAX_POINTS):
        curve.on_step(None, {"step": step, "loss_metrics/global_avg_loss": 1.0})  # type: ignore[arg-type]
    steps = [step for step, _ in curve._train]
    assert MAX_POINTS / 2 <= len(steps) <= MAX_POINTS
    assert {b - a for a, b in pairwise(steps)} == {curve._every}


def test_the_terminal_names_kernel_start_loss_and_checkpoint(tmp_path: Path, tokenizer: Any) -> None:
    lines: list[str] = []
    ctx = context(tmp_path, tokenizer, evaluated=True, callbacks=[Console(lines.append)])
    lm.train(ctx)
    text = "\n".join(lines)
    assert "made: ddp on 1 rank(s), from the start, attention: sdpa-per-example (cpu: " in text
    assert "step 1/6  loss" in text
    assert "step 6/6  loss" in text
    assert "step 6: checkpoint" in text
    assert "step 0: held-out loss" in text
