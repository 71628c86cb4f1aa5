from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from warpbeam.record.capture import ship_rest
from warpbeam.record.stream import StreamReader
from warpbeam.storage.local import LocalStore

PROGRAM = """
import os, signal, subprocess, sys
from pathlib import Path
from warpbeam.record.capture import Capture
from warpbeam.storage.local import LocalStore
store = LocalStore(Path({root!r}))
with Capture(store, "t", "r", "a", "rank-0", Path({logs!r}), secrets=["canary-value"], forward={forward}):
{body}
print("outside")
"""


def run(tmp_path: Path, body: str, forward: bool = False) -> tuple[subprocess.CompletedProcess[bytes], str]:
    root, logs = tmp_path / "store", tmp_path / "logs"
    root.mkdir()
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    program = PROGRAM.format(root=str(root), logs=str(logs), body=lines, forward=forward)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    store = LocalStore(root)
    ship_rest(store, "t", "r", "a", logs, ["canary-value"])
    assert not list(logs.glob("*.log"))
    return done, StreamReader(store, "teams/t/runs/r/record/a/logs").read().get("rank-0", b"").decode()


def test_all_writers_of_the_process_are_caught(tmp_path: Path) -> None:
    body = "print('python', flush=True)\nsubprocess.run(['echo', 'child'])\nos.write(2, b'descriptor canary-value\\n')"
    done, log = run(tmp_path, body, forward=True)
    assert log == "python\nchild\ndescriptor [secret]\n"
    assert done.stdout.endswith(b"outside\n")
    assert done.stdout.startswith(b"python\nchild\n")


@pytest.mark.parametrize(
    ("end", "code"),
    [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL), ("raise SystemExit(5)", 5)],
)
def test_the_last_line_survives(tmp_path: Path, end: str, code: int) -> None:
    done, log = run(tmp_path, f"print('first')\nprint('last words', end='')\n{end}")
    assert done.returncode == code
    assert log == "first\nlast words"


def test_a_flood_and_a_giant_line(tmp_path: Path) -> None:
    body = "for n in range(200_000): print('line', n)\nprint('x' * 5_000_000)\nprint('the end')\nos._exit(0)"
    _, log = run(tmp_path, body)
    lines = log.splitlines()
    assert lines[:2] == ["line 0", "line 1"]
    assert len(lines) == 200_002
    assert len(lines[-2]) == 5_000_000
    assert lines[-1] == "the end"
