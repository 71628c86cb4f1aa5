"""The one place where errors become words and exit codes (DESIGN §8.6)."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

from rich.text import Text

from warpbeam.cli.output import READER_GONE, err, print_json
from warpbeam.errors import InfraError, WarpbeamError


def report(error: WarpbeamError, *, as_json: bool) -> int:
    """Print what, why and fix, once; returns the exit code."""
    if as_json:
        print_json({"error": error.to_dict()})
        return error.exit_code
    err.print(Text.assemble(("error: ", "bold red"), error.what))
    if error.why:
        err.print(Text.assemble(("  why: ", "bold"), _indented(error.why)))
    if error.fix:
        err.print(Text.assemble(("  fix: ", "bold"), _indented(error.fix)))
    return error.exit_code


def say_interrupted() -> None:
    """Ctrl-C where a command has no end of its own for it: while it looks, or before it began."""
    err.print(Text("interrupted"))


def report_crash(error: BaseException, *, as_json: bool) -> int:
    """A bug of ours: a short message here, the traceback in a file; exit code 3."""
    path = _save_traceback(error)
    summary = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    bug = WarpbeamError(
        f"warpbeam itself failed: {summary}",
        why=f"the traceback is in {path}" if path else "the traceback could not be saved:\n" + traceback.format_exc(),
        fix="please report it with that file (read it first: it may quote your paths)",
        reason="crash",
    )
    return report(bug, as_json=as_json)


def flush_output(more: str = "") -> int | None:
    """Write what is still in the buffer; an exit code where that fails: a full disk, a reader that is gone."""
    try:
        sys.stdout.write(more)  # a write that has failed leaves nothing to flush: another one fails as well
        sys.stdout.flush()
    except BrokenPipeError:
        code = READER_GONE
    except OSError as error:
        full = InfraError("the output could not be written", why=error.strerror or str(error), reason="output")
        code = report(full, as_json=False)
    else:
        return None
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's end tries, and says it again
    return code


def _save_traceback(error: BaseException) -> Path | None:
    home = Path(os.environ.get("WARPBEAM_HOME") or "~/.warpbeam").expanduser()
    path = home / "crashes" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join([f"{sys.argv}\n\n", *traceback.format_exception(error)]))
    except OSError:
        return None
    return path


def _indented(text: str) -> str:
    return text.replace("\n", "\n       ")
