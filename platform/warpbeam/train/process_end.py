"""How the process of a rank ends: with the exit code of its work, without the interpreter's teardown; and with its
launcher.

gloo's threads hold the tensors of the last collective a moment longer than the rank that waits for it. A tensor that
Python has seen is let go under the GIL, and a thread that asks a finalising interpreter for the GIL is unwound through
C++ that does not allow it: "terminate called without an active exception", SIGABRT, and a run that had succeeded fails
under torchrun (a quarter of short runs on two busy cores, torch 2.13, Python 3.11). So the process is left before.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def end_with_launcher() -> None:
    """Under torchrun, die when it dies (Linux): ranks that nobody watches would hold the run's name and train on."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with(work: Callable[[], int]) -> NoReturn:
    """Run `work` and end the process with the code it returns; an exception is printed, and ends it with 1.

    Call it before others register exit handlers: they run last to first, so theirs all run, and then the process is
    gone. Threads that are no daemons are waited for, as at any interpreter's end.
    """
    code = 1

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # nobody reads any more
                stream.flush()
        os._exit(code)

    atexit.register(leave)
    try:
        code = work()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        raise
    sys.exit(code)
