"""Who is alive on this host: exact to the process, never by pid alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from warpbeam.checkpoint.members import Member, end_leftovers, here, start_time, this_process

# `cat` ends when its input does, so it cannot outlive the test.
WAIT = ["cat"]
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); input()",
]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(WAIT, stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def member_of(pid: int) -> Member:
    return Member("rank-1", "host", pid, start_time(pid), here())


def test_a_running_process_is_recognised(child: subprocess.Popen[bytes]) -> None:
    assert this_process("driver").is_running()
    assert member_of(child.pid).is_running()
    assert Member.from_dict(member_of(child.pid).to_dict()) == member_of(child.pid)


def test_the_same_pid_with_another_start_or_boot_is_somebody_else(child: subprocess.Popen[bytes]) -> None:
    member = member_of(child.pid)
    assert not replace(member, start=member.start + 1).is_running()
    assert not replace(member, boot_id="another/pid:[1]").is_running()
    replace(member, start=member.start + 1).kill()
    assert child.poll() is None


def test_a_zombie_does_not_run(child: subprocess.Popen[bytes]) -> None:
    member = member_of(child.pid)
    member.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has reaped it
    assert not member.is_running()


def test_leftovers_that_end_by_themselves_are_not_killed(child: subprocess.Popen[bytes]) -> None:
    def sleep(seconds: float) -> None:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait() == 0

    said: list[str] = []
    assert end_leftovers([member_of(child.pid)], sleep=sleep, on_event=said.append) == []
    assert said == [f"waiting up to 10 s for rank-1 (pid {child.pid}) of the earlier attempt to end"]


def test_leftovers_that_stay_are_killed_after_the_wait() -> None:
    process = subprocess.Popen(STUBBORN, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 100:
            assert process.wait() == -9

    ended = end_leftovers([member_of(process.pid)], wait_s=10, sleep=sleep)
    assert [member.pid for member in ended] == [process.pid]
    assert sum(slept) == pytest.approx(10, abs=0.2)
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()


def test_nobody_left_means_no_waiting() -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("must not wait")

    said: list[str] = []
    gone = replace(this_process("rank-0"), start=1.0)
    assert end_leftovers([gone], sleep=sleep, on_event=said.append) == []
    assert said == []
