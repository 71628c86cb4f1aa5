"""TensorBoard event files of every run: `tensorboard --logdir <the folder that the run names>`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.train.callbacks.base import Callback
from warpbeam.train.callbacks.files import RecordFiles

if TYPE_CHECKING:
    from warpbeam.checkpoint.save import SavedCheckpoint
    from warpbeam.train.context import Context
    from warpbeam.train.evaluate import EvalResult


class TensorBoard(Callback):
    """Writes each row's numbers; the files go to the record at checkpoints and at the end."""

    def on_start(self, ctx: Context) -> None:
        from tensorboardX import SummaryWriter

        self._files = RecordFiles(ctx, "tensorboard")
        self._writer = SummaryWriter(logdir=str(self._files.folder), flush_secs=60)

    def on_step(self, ctx: Context, row: Mapping[str, Any]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        # One event for all numbers of a step: a tenth of what one event each costs the training thread.
        numbers = {name: value for name, value in row.items() if name != "step" and isinstance(value, int | float)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._writer.file_writer.add_summary(Summary(value=values), row["step"])

    def on_eval(self, ctx: Context, result: EvalResult) -> None:
        self._writer.add_scalar("validation_metrics/loss", result.loss, ctx.step_done)

    def on_checkpoint(self, ctx: Context, saved: SavedCheckpoint) -> None:
        self._files.refresh_soon(self._flush)

    def on_end(self, ctx: Context, state: str) -> None:
        self._files.refresh(self._flush)
        self._writer.close()

    def _flush(self, folder: Path) -> None:
        self._writer.flush()
