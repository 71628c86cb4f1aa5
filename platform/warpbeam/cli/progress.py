"""A run's progress: one live line on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.live import Live
from rich.text import Text

from warpbeam.cli.output import duration, err, note, warn
from warpbeam.launch.watch import Progress

PLAIN_EVERY_S = 10.0


class TerminalReporter:
    """What `warpbeam run` shows while it runs. A context manager: the live line is gone afterwards."""

    def __init__(self, now: Callable[[], float] = time.monotonic, live: bool | None = None) -> None:
        self._now = now
        self._live = Live(console=err, refresh_per_second=4, transient=True) if _is_live(live) else None
        self._shown = ""
        self._plain_at = float("-inf")
        self._plain_key: int | None = None

    def __enter__(self) -> TerminalReporter:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def note(self, text: str) -> None:
        """See Reporter."""
        note(text)

    def warn(self, text: str) -> None:
        """See Reporter."""
        warn(text)

    def preparing(self, done: int, of: int, rows: int, tokens: int) -> None:
        """See Reporter."""
        if of:
            self._show(f"preparing data: {done} of {of} tasks, {rows:,} rows, {tokens:,} tokens", key=done)
        else:
            self._show("starting workers, looking at the data", key=-1)

    def training(self, progress: Progress) -> None:
        """See Reporter."""
        if progress.step == 0:
            self._show(f"starting: {progress.ranks_up} of {progress.world_size} ranks are up", key=progress.ranks_up)
        else:
            self._show(training_line(progress), key=progress.step)

    def _show(self, line: str, key: int) -> None:
        """Redraw the live line; as plain text, print at most one in `PLAIN_EVERY_S`, and none that says nothing new."""
        if self._live:
            if line != self._shown:
                self._shown = line
                self._live.update(Text(line, style="cyan"))
        elif key != self._plain_key and self._now() - self._plain_at >= PLAIN_EVERY_S:
            self._plain_at, self._plain_key = self._now(), key
            err.print(Text(line))


def training_line(progress: Progress) -> str:
    """`step 20/100  loss 2.31  5,744 tokens/s  1m 20s left`."""
    total = progress.total_steps
    parts = [f"step {progress.step}/{total if total is not None else '?'}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4f}")
    if progress.tokens_per_s is not None:
        parts.append(f"{progress.tokens_per_s:,.0f} tokens/s")
    if progress.eta_s is not None:
        parts.append(f"{duration(progress.eta_s)} left")
    return "  ".join(parts)


def _is_live(live: bool | None) -> bool:
    return err.is_terminal if live is None else live
