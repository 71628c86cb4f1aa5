"""How far a preflight is: a live bar on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from warpbeam.cli.output import err, note

PLAIN_EVERY_S = 5.0


class PreflightProgress:
    """A context manager, called with (phase, done, of).

    Args:
        quiet: say nothing; a script reads the result.
    """

    def __init__(self, *, quiet: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._quiet, self._now = quiet, now
        self._live: Progress | None = None
        if err.is_terminal and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._live = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err, transient=True)
        self._phase = ""
        self._said_at = float("-inf")

    def __enter__(self) -> PreflightProgress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, phase: str, done: int, of: int) -> None:
        """See conduct.Progress."""
        if self._quiet:
            return
        if self._live:
            self._show(self._live, phase, done, of)
        elif phase != self._phase and self._now() - self._said_at >= PLAIN_EVERY_S:
            self._said_at, self._phase = self._now(), phase
            note(f"{phase}: {done} of {of}")

    def _show(self, live: Progress, phase: str, done: int, of: int) -> None:
        if phase != self._phase:
            for task in live.task_ids:
                live.remove_task(task)
            live.add_task(phase, total=of)
            self._phase = phase
        live.update(live.task_ids[0], completed=done, total=of)
