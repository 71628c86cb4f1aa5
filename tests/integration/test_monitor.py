"""The driver's monitor on real processes that talk over gloo, without Ray: how soon it sees a hang, what it takes for
one, and what the doctor says when nothing but the store is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.watched_ranks import ATTEMPT, BUSY_S, FAULT_STEP, TEAM
from warpbeam.checkpoint.log import RunLog
from warpbeam.checkpoint.members import this_process
from warpbeam.doctor.from_record import examine
from warpbeam.launch.rank_watch import RankWatch
from warpbeam.launch.watch import AttemptWatch
from warpbeam.record import black_box
from warpbeam.record.view import RunView
from warpbeam.record.writer import RecordWriter
from warpbeam.storage.local import LocalStore

WITHIN_S = 60.0
"""30 s, two looks, and a busy machine."""
PAIRS = ("stopped", "leaves", "diverges", "busy")


@dataclass
class Pair:
    """Two ranks and the part of a driver that watches them."""

    folder: Path
    fault: str
    asked: list[str] = field(default_factory=list)
    hung_at: float | None = None
    ended_at: float | None = None

    def __post_init__(self) -> None:
        self.store = LocalStore(self.folder / "store")
        RunLog(self.store, TEAM, self.fault).claim(ATTEMPT, [this_process("driver")])
        self.view = RunView(self.store, TEAM, self.fault)
        self.record = RecordWriter(self.store, TEAM, self.fault, ATTEMPT, "driver")
        self.watch = AttemptWatch(self.view, ATTEMPT, 2)
        ranks = self.folder / "ranks"
        self.ranks = RankWatch(self.watch, self.record, self, ranks, 600, self.abort, self.asked.append)
        command = [sys.executable, "-m", "tests.integration.watched_ranks", str(self.folder)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PLANTED": "canary-77aa55cc33"}
        self.processes = [subprocess.Popen([*command, str(rank), self.fault], env=env) for rank in (0, 1)]

    def warn(self, text: str) -> None:
        """The driver's terminal."""

    def abort(self) -> None:
        """The driver's way to end them."""
        self.ended_at = time.monotonic()
        self.kill()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def tick(self) -> None:
        """As the driver does ten times a second."""
        progress = self.watch.look()
        if progress.step and self.ended_at is None:
            self.ranks.tick()
        if self.fault == "stopped" and progress.step >= FAULT_STEP and self.hung_at is None:
            os.kill(self.processes[1].pid, signal.SIGSTOP)
            self.hung_at = time.monotonic()

    def close(self) -> None:
        """The attempt's end: the black box is packed, then everything local is gone."""
        self.kill()
        self.record.close()
        names = (TEAM, self.fault, ATTEMPT)
        black_box.keep(self.store, names, "machine-a", black_box.of_machine(self.folder / "ranks", []))
        seen = self.ranks.lookout.history()
        black_box.keep(self.store, names, "driver", black_box.of_record(self.store, names, seen, 2, []))
        shutil.rmtree(self.folder / "ranks")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    """All at once: they mostly wait. Watched until each has had the time to hang, and to be ended for it."""
    with ExitStack() as stack:
        made = {}
        for fault in PAIRS:
            folder = tmp_path_factory.mktemp(fault)
            made[fault] = Pair(folder, fault)
            stack.callback(made[fault].kill)
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and not done(made):
            for pair in made.values():
                pair.tick()
            time.sleep(0.1)
        for pair in made.values():
            pair.close()
        yield made


def done(pairs: dict[str, Pair]) -> bool:
    """Whether the three that hang were ended, and the one that works is past it."""
    hung = all(pairs[fault].ended_at is not None for fault in ("stopped", "leaves", "diverges"))
    return hung and pairs["busy"].watch.look().step > FAULT_STEP + 100


def test_a_stopped_rank_is_seen_in_time_and_named_after_everything_local_is_gone(pairs: dict[str, Pair]) -> None:
    pair = pairs["stopped"]
    assert pair.ended_at is not None
    assert pair.hung_at is not None
    assert 25 < pair.ended_at - pair.hung_at < WITHIN_S
    _, answer = examine(pair.view)
    assert answer.first is not None
    assert (answer.first.kind, answer.first.where) == ("slow_or_absent_rank", "rank 1")


def test_a_rank_that_has_left_its_loop_is_named(pairs: dict[str, Pair]) -> None:
    assert pairs["leaves"].ended_at is not None
    _, answer = examine(pairs["leaves"].view)
    assert answer.first is not None
    assert (answer.first.kind, answer.first.where) == ("data_exhaustion", "rank 1")


def test_collectives_that_differ_show_in_the_flight_recorder(pairs: dict[str, Pair]) -> None:
    assert pairs["diverges"].ended_at is not None
    _, answer = examine(pairs["diverges"].view)
    assert answer.first is not None
    assert (answer.first.kind, answer.first.owner) == ("collective_divergence", "ml"), answer


def test_work_is_no_hang(pairs: dict[str, Pair]) -> None:
    busy = pairs["busy"]
    assert busy.ended_at is None, f"{BUSY_S} s of work in a phase of milliseconds"
    assert busy.watch.look().step > FAULT_STEP + 100


def test_the_ranks_left_their_stacks_and_no_secret(pairs: dict[str, Pair]) -> None:
    files = {
        name: b"".join(blocks)
        for info in pairs["stopped"].store.list(f"teams/{TEAM}/runs/stopped/record/{ATTEMPT}/black-box/")
        for name, blocks in unpacked(pairs["stopped"].store.get(info.key))
    }
    assert {"rank-0.stacks.txt", "rank-0.env", "fr_trace_rank_0", "heartbeats.jsonl", "metrics.jsonl"} <= set(files)
    assert b"all_reduce" in files["rank-0.stacks.txt"]
    assert not [name for name, content in files.items() if b"canary-77aa55cc33" in content]


def unpacked(data: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A black box as the doctor reads it."""
    import io

    from warpbeam.doctor.bundle import bundle_items

    for name, blocks in bundle_items(Path("box"), [], file=io.BytesIO(data)):
        yield name, list(blocks)
