"""The end of a rank's process: its code, everybody's exit handlers, and no teardown after them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from warpbeam.train.process_end import end_with

class Kept:
    def __del__(self):
        print("torn down")

kept = Kept()

def work():
    atexit.register(print, "handler")
    threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
    sys.stdout.write("no newline, ")
    {ending}

end_with(work)
"""


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("return 0", 0, ""),
        ("return 7", 7, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no such job')", 1, "no such job"),
        ("raise ValueError('no such key')", 1, "ValueError: no such key"),
    ],
)
def test_the_code_the_output_and_the_handlers_are_kept_and_nothing_is_torn_down(
    ending: str, code: int, said: str
) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(ending=ending)], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stdout == "no newline, thread\nhandler\n"
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)
