"""The loss of every step and the held-out loss as a picture, `loss_curve/loss.png` in the attempt's record."""

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

MAX_POINTS = 2000


class LossCurve(Callback):
    """Keeps at most 2000 points in memory, evenly thinned as the run grows."""

    def __init__(self) -> None:
        self._train: list[tuple[int, float]] = []
        self._held_out: list[tuple[int, float]] = []
        self._every = 1
        self._title = ""

    def on_start(self, ctx: Context) -> None:
        self._files = RecordFiles(ctx, "loss_curve")
        self._title = ctx.job.name

    def on_step(self, ctx: Context, row: Mapping[str, Any]) -> None:
        if row["step"] % self._every == 0:
            self._train.append((row["step"], row["loss_metrics/global_avg_loss"]))
        if len(self._train) > MAX_POINTS:
            self._train = self._train[1::2]
            self._every *= 2

    def on_eval(self, ctx: Context, result: EvalResult) -> None:
        self._held_out.append((ctx.step_done, result.loss))

    def on_checkpoint(self, ctx: Context, saved: SavedCheckpoint) -> None:
        if ctx.step_done < ctx.total_steps:
            self._files.refresh_soon(self._draw)

    def on_end(self, ctx: Context, state: str) -> None:
        self._files.refresh(self._draw)

    def _draw(self, folder: Path) -> None:
        from matplotlib.figure import Figure  # not pyplot: no global state, any thread may draw

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for points, style, label in ((list(self._train), "-", "training"), (list(self._held_out), "o-", "held out")):
            if points:
                axes.plot(*zip(*points, strict=True), style, label=label, markersize=4, linewidth=1.2)
        axes.set(xlabel="step", ylabel="loss per token", title=self._title)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(folder / "loss.png", dpi=110)
