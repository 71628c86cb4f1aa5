"""Ranks come first on a machine whose cores they fill; everything else of ours stands back.

A helper that wakes up a hundred times a second takes hardly any time itself (Ray's workers look for signals so often,
the S3 server's runtime more so), but each time it pushes a rank off its core, in the middle of an operator that its
neighbours wait for. Linux' SCHED_BATCH leaves a process its fair share of the cores and takes from it only this: it
does not interrupt who is running. Measured with two ranks on two cores: see ADR 0015.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_OURS = "WARPBEAM_STANDS_BACK"


@contextlib.contextmanager
def standing_back() -> Iterator[None]:
    """What this thread starts inside, processes and threads, does not interrupt ranks; they hand that on. Where the
    system knows no such thing, or forbids it, nothing changes.
    """
    changed = _change(0, "SCHED_OTHER", "SCHED_BATCH")
    if changed:
        os.environ[_OURS] = "1"  # for the ranks among them
    try:
        yield
    finally:
        if changed:
            os.environ.pop(_OURS, None)
            _change(0, "SCHED_BATCH", "SCHED_OTHER")


def stand_in_front() -> None:
    """In a rank: this process interrupts who stands back again, with all of its threads but the first one. That one is
    not the loop's: there Ray looks for signals a hundred times a second, each time with the interpreter's lock.

    Only where it was us who made it stand back: a cluster that we joined, and a user's own choice, are left alone.
    """
    if _OURS not in os.environ:
        return
    with contextlib.suppress(FileNotFoundError):  # no Linux
        for thread in os.listdir("/proc/self/task"):
            if int(thread) != os.getpid():
                _change(int(thread), "SCHED_BATCH", "SCHED_OTHER")


def _change(thread: int, before: str, after: str) -> bool:
    """Change one thread's policy (0: the calling one), if it is `before`: whoever chose another one meant it."""
    if not hasattr(os, "sched_setscheduler"):
        return False
    with contextlib.suppress(OSError):  # the thread has ended, or a sandbox forbids the call
        if os.sched_getscheduler(thread) == getattr(os, before):
            os.sched_setscheduler(thread, getattr(os, after), os.sched_param(0))
            return True
    return False
