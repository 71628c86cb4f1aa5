"""Faults for `warpbeam run`, each with real processes, and what the doctor says of the run afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from typer.testing import CliRunner

from tests.integration.launch_runs import Workplace
from warpbeam.cli.main import app
from warpbeam.train.diagnostics import stacks_path

CGROUPS = Path("/sys/fs/cgroup")
LOOP = '''\
"""A loop of one's own that goes wrong on one rank, at one step."""

import os

import torch
import torch.distributed as dist


def train(ctx):
    strategy = ctx.shard(ctx.build_model())
    share = torch.zeros(())
    for batch in ctx.batches():
        with strategy.micro_step(last=batch.last):
            loss = ctx.loss(strategy.module, batch) / batch.global_loss_tokens
            strategy.backward(loss)
        share += loss.detach()
        if batch.last:
            norm = strategy.step(ctx.lr)
            {fault}
            ctx.step(loss=share, grad_norm=norm)
            share.zero_()
'''


class Scene(Workplace):
    """A workplace whose job breaks."""

    def write(self, *, extra: str = "", train: str = "", **job: Any) -> Path:
        """The tiny job; `train` goes into its section, with a limit for stalls that no test waits for."""
        path = self.write_job(extra=extra, **job)
        wanted = "stall_after_s: 600" + (f", {train}" if train else "")
        path.write_text(path.read_text().replace("stall_after_s: 6", wanted))
        return path

    def write_loop(self, fault: str, **job: Any) -> Path:
        """A loop that does `fault` before it ends a step (`ctx`, `batch`, `dist`, `torch` are there)."""
        (self.folder / "loop.py").write_text(LOOP.format(fault=fault))
        return self.write(extra='recipe: "loop:train"\n', **job)

    def doctor(self) -> dict[str, Any]:
        """The finding of `warpbeam doctor RUN`."""
        answer = json.loads(self.ask("doctor", self.name, "--json"))
        assert answer["answer"] == "cause", (answer, self.text())
        found: dict[str, Any] = answer["finding"]
        return found

    def ask(self, *arguments: str) -> str:
        """What a command prints, in this process: its imports and the doctor's matcher are paid for once."""
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
            assert result.stdout, result.output
            return result.stdout
        finally:
            os.chdir(before)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Of the newest attempt."""
        view = self.view()
        attempts = view.attempts()
        return [event for event in view.events(attempts[-1]) if event["kind"] == kind] if attempts else []

    def until_step(self, driver: subprocess.Popen[bytes], step: int) -> None:
        """Wait for it."""
        self.until(driver, lambda: self.view().attempts() and self.view().status().step >= step)

    def until_failed(self, driver: subprocess.Popen[bytes]) -> None:
        """Wait until an attempt has ended badly, then end the command: what comes after is not of interest. A Ray that
        did not start in time, on a machine with much else to do, is no fault of ours."""
        driver_ends = time.monotonic() + 600
        while driver.poll() is None and not self._has_failed() and time.monotonic() < driver_ends:
            time.sleep(0.2)
        self.end(driver)

    def end(self, driver: subprocess.Popen[bytes]) -> None:
        """As a person does who has no patience: Ctrl-C, twice."""
        for _ in range(2):
            if driver.poll() is None:
                driver.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    driver.wait(5)
        driver.wait(120)

    def _has_failed(self) -> bool:
        view = self.view()
        failed = [event for one in view.attempts() for event in view.events(one) if event["kind"] == "failed"]
        return any("local Ray could not be started" not in event["what"] for event in failed)


def rank_that_begins(driver: subprocess.Popen[bytes], rank: int) -> psutil.Process | None:
    """The process that has just opened its file of stacks: it has not said yet that it is there."""
    for folder in Path(tempfile.gettempdir(), f"warpbeam-{os.getuid()}").glob("launch-*"):
        path = stacks_path(folder, rank)
        if not path.exists():
            continue
        for child in psutil.Process(driver.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(file.path == str(path) for file in child.open_files()):
                    return child
    return None


@contextlib.contextmanager
def control_group(controller: str, **limits: str) -> Iterator[Path]:
    """A group (version 1) below this process's own; whoever is in it at the end goes back to the parent."""
    own = next(
        line.split(":", 2)[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if controller in line.split(":")[1].split(",")
    )
    group = CGROUPS / controller / own.strip("/") / f"warpbeam-inject-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name.replace("__", ".")).write_text(value)
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def may_limit(controller: str) -> bool:
    """Whether this user may make control groups of version 1 here."""
    return (CGROUPS / controller / "cgroup.procs").exists() and os.access(CGROUPS / controller, os.W_OK)
