"""Preflight with real processes: what is broken is named, by rank or by pair, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.preflight_faults import conducted, cut, rank_process, signal_rank, throttled
from warpbeam.preflight.ask import Ask
from warpbeam.preflight.local import LocalCrew
from warpbeam.preflight.measured import How, Measured
from warpbeam.preflight.namespaces import Namespaces, allowed

ASK = Ask(quick=True, budget_s=6.0, join_s=60.0, answer_s=15.0, link_s=3.0)
LONGER = replace(ASK, budget_s=20.0)  # nothing follows a dead link, so it is not used up
needs_root = pytest.mark.skipif(not allowed(), reason="namespaces and control groups are root's")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every process that a test's preflight started has ended with it."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [child.name() for child in psutil.wait_procs(left, timeout=5)[1] if child.is_running()] == []


def command(*words: str, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "warpbeam.cli.main", "preflight", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@needs_root
def test_one_rank_slowed_by_a_cgroup_is_named_by_rank(warpbeam_home: Path) -> None:
    """The whole command: disk and the embedded store are measured on the way, in two namespaces."""
    with throttled(0.1, f"wbpf-{os.getpid()}") as put:
        process = command("--local", "4", "--quick", "--within", "12", "--json", home=warpbeam_home)
        put(rank_process(process.pid, "preflight-2").pid)
        out, errors = process.communicate(timeout=120)
    answer: dict[str, Any] = json.loads(out)
    assert [suspect["where"] for suspect in answer["suspects"]] == ["rank 2"], (answer["rows"], errors)
    assert "its control group allows 0.1 of a core" in answer["suspects"][0]["what"]
    assert (process.returncode, answer["passed"]) == (1, False)
    measured = answer["measured"]
    assert sorted({rank["node"] for rank in measured["ranks"]}) == ["node-0", "node-1"]
    store = measured["storage"]["0"]["store"]
    assert (store["error"], store["read"] > 0, store["write"] > 0) == ("", True, True)
    assert {one["op"] for one in measured["collectives"]} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
    }


@needs_root
def test_one_dead_link_is_named_by_pair() -> None:
    with Namespaces(3) as nodes:
        cut(nodes[1], nodes[2])
        measured, verdict = conducted(LocalCrew(3, nodes), LONGER)
    assert [(suspect.where, suspect.nodes) for suspect in verdict.suspects] == [
        ("ranks 1 and 2", ("node-1", "node-2"))
    ], verdict
    assert [(link.one, link.other) for link in measured.links if link.dead] == [(1, 2)]
    assert measured.collectives == []


@pytest.mark.parametrize(
    ("number", "at", "how", "what"),
    [
        (signal.SIGSTOP, "links", How.HANGS, "is stopped"),
        (signal.SIGKILL, "all-gather", How.DIED, "SIGKILL"),
    ],
)
def test_a_rank_that_stands_still_or_dies_is_named(number: int, at: str, how: How, what: str) -> None:
    def fault(measured: Measured) -> None:
        signal_rank(measured, 1, number)

    began = time.monotonic()
    measured, verdict = conducted(LocalCrew(3), ASK, at, fault)
    assert [(lost.rank, lost.how) for lost in measured.lost] == [(1, how)]
    assert what in measured.lost[0].what
    assert [suspect.where for suspect in verdict.suspects] == ["rank 1"]
    assert time.monotonic() - began < 60.0


def test_a_rank_that_never_joins_is_named() -> None:
    crew = LocalCrew(3)
    os.mkfifo(crew.folder / "rank-2.log")  # nobody reads it: the rank waits in its first line, for ever
    measured, verdict = conducted(crew, Ask(quick=True, budget_s=5.0, join_s=12.0))
    assert [(lost.rank, lost.how) for lost in measured.lost] == [(2, How.NEVER_JOINED)], measured.lost
    assert [suspect.where for suspect in verdict.suspects] == ["rank 2"]
