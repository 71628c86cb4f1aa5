"""What a callback may have, and telling all of them.

A callback is any object with some of these methods; every rank makes its own and calls them in the same order. What it
raises ends the run like any other error of the user's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpbeam.checkpoint.save import SavedCheckpoint
    from warpbeam.train.context import Context
    from warpbeam.train.evaluate import EvalResult


class Callback:
    """Base with all moments, for those who like one; inheriting is not needed."""

    def on_start(self, ctx: Context) -> None:
        """Before the first step of this attempt; the state is restored."""

    def on_step(self, ctx: Context, row: Mapping[str, Any]) -> None:
        """After an optimizer step; `row` is what goes into the record."""

    def on_eval(self, ctx: Context, result: EvalResult) -> None:
        """After an evaluation at `ctx.step_done`."""

    def on_checkpoint(self, ctx: Context, saved: SavedCheckpoint) -> None:
        """After a checkpoint was committed."""

    def on_end(self, ctx: Context, state: str) -> None:
        """When the loop has ended well: `done` or `stopped`."""


class Callbacks:
    """All callbacks of a rank, in order."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = list(callbacks)

    def tell(self, moment: str, *arguments: Any) -> None:
        """Call `moment` where a callback has it."""
        for callback in self._callbacks:
            method = getattr(callback, moment, None)
            if method is not None:
                method(*arguments)
