"""Real faults for a preflight: a throttled control group, a cut link, a process that stands still."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from warpbeam.preflight.ask import Ask
from warpbeam.preflight.conduct import Conductor
from warpbeam.preflight.expected import Expected
from warpbeam.preflight.judge import judge
from warpbeam.preflight.local import LocalCrew
from warpbeam.preflight.measured import Measured
from warpbeam.preflight.namespaces import DrillNode
from warpbeam.preflight.verdict import Verdict

PERIOD_US = 100_000


@contextlib.contextmanager
def throttled(share: float, name: str) -> Iterator[Callable[[int], None]]:
    """A control group that allows `share` of a core; what is yielded puts a process into it."""
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").exists()
    group = (root if unified else root / "cpu") / name
    group.mkdir()
    try:
        quota = int(share * PERIOD_US)
        if unified:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        yield lambda pid: (group / "cgroup.procs").write_text(str(pid)) and None
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:  # its last process may still be on its way out
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
    raise AssertionError(f"{group} cannot be removed: {(group / 'cgroup.procs').read_text().split()}")


def cut(one: DrillNode, other: DrillNode) -> None:
    """Nothing passes between the two any more; both still reach everybody else."""
    for here, there in ((one, other), (other, one)):
        subprocess.run(here.command("iptables", "-A", "INPUT", "-s", there.address, "-j", "DROP"), check=True)


def unplug(node: DrillNode) -> None:
    """Its interface goes down."""
    subprocess.run(node.command("ip", "link", "set", "eth0", "down"), check=True)


def rank_process(driver_pid: int, name: str, within_s: float = 60.0) -> psutil.Process:
    """A process below the command that conducts it whose title has this in it: `preflight-2`, `PreflightRank`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(driver_pid).children(recursive=True):
                if any(name in title for title in (child.name(), *child.cmdline()[:1])):
                    return child
        time.sleep(0.1)
    raise AssertionError(f"{name} did not appear in {within_s} s")


def conducted(
    crew: LocalCrew, ask: Ask, at: str = "", fault: Callable[[Measured], None] = lambda measured: None
) -> tuple[Measured, Verdict]:
    """Conduct a local crew here; `fault` happens once, when the phase `at` is first heard of."""
    happened: list[str] = []

    def progress(phase: str, done: int, of: int) -> None:
        if at and phase.startswith(at) and not happened:
            happened.append(phase)
            fault(conductor.measured)

    conductor = Conductor(crew, ask, progress)
    measured = conductor.run()
    assert bool(happened) == bool(at), f"phase {at} was not reached: {measured.seconds}"
    return measured, judge(measured, Expected())


def signal_rank(measured: Measured, rank: int, number: int) -> None:
    """Send a rank's process a signal."""
    os.kill(measured.by_rank()[rank].pid, number)
