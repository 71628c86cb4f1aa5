"""Which processes a pod waits for when it must go, and for how long."""

from __future__ import annotations

import pytest

from warpbeam.launch.pre_stop import POLL_S, is_driver, is_rank, wait_until_gone


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("command", "driver", "rank"),
    [
        (["/venv/bin/python", "/venv/bin/warpbeam", "run", "job.yaml", "--yes"], True, False),
        (["/bin/sh", "-c", "warpbeam run job.yaml"], False, False),
        (["python", "/venv/bin/warpbeam", "status", "run"], False, False),
        (["ray::RayTrainWorker.execute"], False, True),
        (["ray::_map_task"], False, False),
        (["python", "-m", "warpbeam.launch.pre_stop", "worker"], False, False),
        ([], False, False),
    ],
)
def test_drivers_and_ranks_by_their_command_lines(command: list[str], driver: bool, rank: bool) -> None:
    assert (is_driver(command), is_rank(command)) == (driver, rank)


def test_it_waits_until_they_are_gone() -> None:
    clock, answers = Clock(), iter([True, True, False])
    assert wait_until_gone(lambda: next(answers), 60, sleep=clock.sleep, now=lambda: clock.now)
    assert clock.now == 2 * POLL_S


def test_and_no_longer_than_the_grace() -> None:
    clock = Clock()
    assert not wait_until_gone(lambda: True, 3, sleep=clock.sleep, now=lambda: clock.now)
    assert clock.now == 3
