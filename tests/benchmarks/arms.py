"""Arms of a benchmark that take turns on the machine: each is a whole tree of processes, stopped and continued.

Starting an arm costs half a minute, and two arms at once would fight for the cores. So every arm is started once and
then stopped (SIGSTOP, every process of its tree) except while it has its turn. Turns are short (seconds), so that the
arms of a block meet the same machine, and shorter than the time-outs of Ray's health checks, which are stopped as well.
An arm's first steps of a turn warm the caches and are not counted.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.benchmarks.scene import WORLD
from tests.benchmarks.step_clock import VARIABLE

POLL_S = 0.1
START_TIMEOUT_S = 600.0
TURN_TIMEOUT_S = 300.0
END_S = 20.0
WARM_STEPS = 2


@dataclass(frozen=True)
class Turn:
    """The counted steps of one turn."""

    steps: int
    seconds: float
    loss_tokens: int

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds

    @property
    def loss_tokens_per_s(self) -> float:
        return self.loss_tokens / self.seconds


class Arm:
    """One way to train, as a process tree that writes a line for every step.

    Args:
        files: one of each process that writes lines; `at` is of the first, `loss_tokens` are added up.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        files: Sequence[str] = ("steps.jsonl",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        home = folder / f"arm-{name.replace(' ', '-')}"
        home.mkdir()
        self._files = [home / file for file in files]
        self._log = home / "output.log"
        path = os.pathsep.join([str(Path(command[0]).parent), os.environ["PATH"]])  # DeepSpeed wants its ninja
        own = {VARIABLE: str(home / "steps.jsonl"), "OMP_NUM_THREADS": "1", "PATH": path}
        environment = {**os.environ, **own, **(environment or {})}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self._own = psutil.Process(self._process.pid)

    def wait_for(self, step: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until it has done so many steps."""
        deadline = time.monotonic() + timeout_s
        while self._done() < step:
            if self._process.poll() is not None:
                raise SystemExit(f"{self.name} ended after {self._done()} steps:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.name} did {self._done()} steps in {timeout_s:.0f} s:\n{self._tail()}")
            time.sleep(POLL_S)

    def turn(self, steps: int) -> Turn:
        """Continue, do some warm steps and `steps` counted ones, stop."""
        first = self._done() + WARM_STEPS
        self.resume()
        self.wait_for(first + steps + 1, TURN_TIMEOUT_S)
        self.pause()
        lines = [_lines(file) for file in self._files]
        at = [line["at"] for line in lines[0]]
        tokens = sum(int(line["loss_tokens"]) for rank in lines for line in rank[first + 1 : first + steps + 1])
        return Turn(steps, at[first + steps] - at[first], tokens)

    def pause(self) -> None:
        """Stop all of its processes; those that are born meanwhile too."""
        stopped: set[int] = set()
        while fresh := [process for process in self._tree() if process.pid not in stopped]:
            for process in fresh:
                _send(process, signal.SIGSTOP)
                stopped.add(process.pid)

    def resume(self) -> None:
        """Continue all of its processes, children first: nobody should wait for one that is stopped."""
        for process in reversed(self._tree()):
            _send(process, signal.SIGCONT)

    def end(self) -> None:
        """End it, and whatever it has started."""
        tree = self._tree()
        self.resume()
        _send(self._own, signal.SIGINT)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            _send(self._own, signal.SIGKILL)
        for process in tree:
            _send(process, signal.SIGKILL)
        self._process.wait(END_S)

    def _tree(self) -> list[psutil.Process]:
        try:
            return [self._own, *self._own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _done(self) -> int:
        return min(_count(file) for file in self._files)

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def torchrun_with(python: Path, *command: str) -> list[str]:
    """`command` under torchrun. Not `--standalone`: that one counts heartbeats, and an arm is stopped at times."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={WORLD}", f"--master-port={port}"]
    return [str(python), *launcher, *command]


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)  # psutil makes sure that the pid is still the same process
    except psutil.NoSuchProcess:
        return


def _count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
