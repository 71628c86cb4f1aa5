"""How the command line speaks: results to stdout, notes and errors to stderr, and JSON instead of both when asked.

Values from outside (paths, messages, names) are never read as rich markup.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 10_000  # whoever reads a pipe wants whole names, whatever COLUMNS says

READER_GONE = 141
"""As shells count a command that SIGPIPE has ended: `warpbeam list | head -1`."""


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """rich ends with 1, which would say that a job has failed."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            sys.exit(READER_GONE)


if sys.stdout is None:  # closed by the caller (`>&-`)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
out = _Output(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPED_WIDTH)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str, style: str = "") -> None:
    """One line of a command's result."""
    out.print(Text(text, style=style))


def note(text: str) -> None:
    """Something a person may want to know while the command goes on."""
    err.print(Text(text, style="dim"))


def warn(text: str) -> None:
    """Something that a person should look at, though the command goes on."""
    err.print(Text.assemble(("warning: ", "yellow"), text))


def print_json(value: Any) -> None:
    """The result as JSON, for scripts."""
    try:
        sys.stdout.write(json.dumps(value, indent=2, default=str, ensure_ascii=False) + "\n")
    except BrokenPipeError:  # click would end with 1, which would say that a job has failed
        sys.exit(READER_GONE)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """A plain table without lines; `right` names the columns of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    out.print(table, soft_wrap=False)


def duration(seconds: float | None) -> str:
    """`95` -> `1m 35s`; unknown is a question mark."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def size(count: float) -> str:
    """Bytes for people: `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
