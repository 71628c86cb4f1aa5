"""Ranks, nodes, pods and times, read from names and lines."""

from __future__ import annotations

import pytest

from warpbeam.doctor import place
from warpbeam.doctor.signal import Reading


@pytest.mark.parametrize(
    ("where", "rank", "node", "reading"),
    [
        ("rank 3 log", 3, None, Reading.LOG),
        ("attempt-1/rank-12.log", 12, None, Reading.LOG),
        ("rank 1..7 log", None, None, Reading.LOG),
        ("dmesg gpu-3", None, "gpu-3", Reading.STATE),
        ("ibv_devinfo node-b", None, "node-b", Reading.STATE),
        ("pod status", None, None, Reading.STATE),
        ("worker pod log", None, None, Reading.LOG),
        ("k8s events", None, None, Reading.STATE),
        ("session/logs/raylet.out", None, None, Reading.LOG),
    ],
)
def test_a_name_says_what_it_is(where: str, rank: int | None, node: str | None, reading: Reading) -> None:
    source = place.source(where)
    assert (source.rank, source.node, source.reading) == (rank, node, reading)


@pytest.mark.parametrize(
    ("line", "rank", "node"),
    [
        ("[rank7]:[E1130 12:00:01 ProcessGroupNCCL.cpp:616] timeout", 7, None),
        ("[default3]:Traceback", 3, None),
        ("gpu-4:1234:1290 [2] NCCL WARN Cuda failure", None, "gpu-4"),
        ("(RayTrainWorker pid=12, ip=10.0.0.7) killed", None, "10.0.0.7"),
        ("nothing of the kind", None, None),
    ],
)
def test_a_line_says_where_it_comes_from(line: str, rank: int | None, node: str | None) -> None:
    source = place.source("driver log")
    assert (place.rank_of(line, source), place.node_of(line, source)) == (rank, node)


def test_three_ways_to_write_a_time_are_one_time() -> None:
    iso = place.time_of("2026-11-30 12:04:07,500 INFO")
    assert iso == place.time_of("[E1130 12:04:07.500 x.cpp:1] y") == place.time_of("2026-11-30T12:04:07.500Z y")
    syslog = place.time_of("Nov 30 12:04:07 gpu-3 kernel: NVRM")
    assert syslog is not None
    assert iso == syslog + 0.5


def test_a_line_without_a_time_has_none() -> None:
    assert place.time_of("[12345.678] NVRM: Xid") is None
