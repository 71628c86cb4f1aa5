"""A line on the terminal now and then, where no driver draws a progress bar (torchrun)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from warpbeam.train.callbacks.base import Callback

if TYPE_CHECKING:
    from warpbeam.checkpoint.save import SavedCheckpoint
    from warpbeam.train.context import Context
    from warpbeam.train.evaluate import EvalResult

EVERY_S = 2.0


class Console(Callback):
    """Prints the first step, the last, and one every two seconds between."""

    def __init__(self, say: Callable[[str], None] = lambda text: print(text, flush=True)) -> None:
        self._say = say
        self._said_at = float("-inf")

    def on_start(self, ctx: Context) -> None:
        kernel = f", attention: {ctx.packing.kernel} ({ctx.packing.reason})" if ctx.packing else ""
        begins = f"from step {ctx.step_done}" if ctx.step_done else "from the start"
        self._say(f"{ctx.job.name}: {ctx.strategy} on {ctx.world_size} rank(s), {begins}{kernel}")

    def on_step(self, ctx: Context, row: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if now - self._said_at < EVERY_S and ctx.step_done < ctx.total_steps and not ctx.stopping:
            return
        self._said_at = now
        norm = f"  norm {row['grad_norm']:.3f}" if "grad_norm" in row else ""
        mfu = f"  MFU {row['mfu(%)']:.1f}%" if "mfu(%)" in row else ""
        self._say(
            f"step {row['step']}/{ctx.total_steps}  loss {row['loss_metrics/global_avg_loss']:.4f}{norm}"
            f"  lr {row['lr']:.2e}  {row['throughput/global_tps']:,.0f} tokens/s{mfu}"
        )

    def on_eval(self, ctx: Context, result: EvalResult) -> None:
        self._say(f"step {ctx.step_done}: held-out loss {result.loss:.4f} over {result.tokens:,} tokens")

    def on_checkpoint(self, ctx: Context, saved: SavedCheckpoint) -> None:
        self._say(f"step {saved.step}: checkpoint, {saved.size / 1e6:,.1f} MB")
