"""A save goes on beside the training: what it holds, when it counts, and what happens when it fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.checkpoint.memory_store import MemoryStore
from tests.unit.train.making import ListSink
from warpbeam.checkpoint.log import RunLog, live_commits
from warpbeam.checkpoint.pieces import Piece, whole
from warpbeam.errors import InfraError
from warpbeam.job import CheckpointSpec
from warpbeam.record.phases import PhaseClock
from warpbeam.storage.store import TransferCancelled
from warpbeam.train.ranks import Ranks
from warpbeam.train.saving import Checkpoints, Identity, Progress


class OneTensor:
    """A state that changes in place, as training's does."""

    def __init__(self) -> None:
        self.weight = torch.zeros(3)
        self.restored: torch.Tensor | None = None

    def pieces(self) -> Iterator[Any]:
        yield whole("w", "weight", (3,)), lambda: self.weight

    def optimizer_steps(self) -> dict[str, int]:
        return {"w": 1}

    def wanted(self, *, optimizer: bool) -> Iterator[Piece]:
        yield whole("w", "weight", (3,))

    def restore(self, read: Any, steps: Mapping[str, int] | None) -> None:
        self.restored = read(whole("w", "weight", (3,)))


class Gate:
    """A store whose uploads wait until they are let through, and fail if told to."""

    def __init__(self, store: MemoryStore) -> None:
        self.open = threading.Event()
        self.error: Exception | None = None
        store.before = self

    def __call__(self, operation: str, key: str) -> None:
        if operation == "upload":
            assert self.open.wait(20)
            if self.error:
                raise self.error


class Bench:
    """One rank's Checkpoints on a store with a gate."""

    def __init__(self, folder: Path, **asked: Any) -> None:
        self.store = MemoryStore()
        self.gate = Gate(self.store)
        self.sink = ListSink()
        self.state = OneTensor()
        self.log = RunLog(self.store, "team", "run")
        self.folder = folder
        self.asked = CheckpointSpec(**asked)
        self.saver = self.attempt("a1")

    def attempt(self, name: str) -> Checkpoints:
        self.store.now += 60
        return Checkpoints(
            self.store,
            self.log.claim(name),
            Ranks(),
            sink=self.sink,
            clock=PhaseClock(),
            identity=Identity(job_digest="j", data_fingerprint="d", plan={}, versions={}),
            asked=self.asked,
            scratch=self.folder / "scratch",
        )

    def save(self, step: int) -> Any:
        self.state.weight.fill_(step)
        return self.saver.save(self.state, step, {"step": step}, {})

    def turn(self) -> Any:
        """What a step's all-reduce does, with one rank."""
        return self.saver.advance(self.saver.progress())

    def committed(self) -> list[int | None]:
        return [commit.step for commit in live_commits(RunLog(self.store, "team", "run").read())]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_training_goes_on_and_the_save_keeps_its_moment(bench: Bench) -> None:
    assert bench.save(10) is None
    assert bench.turn() is None
    bench.state.weight.fill_(11)  # the next step, while nothing has been uploaded
    assert bench.committed() == []
    bench.gate.open.set()
    saved = bench.saver.settle()
    assert saved is not None
    assert saved.step == 10
    assert bench.committed() == [10]
    later = bench.attempt("a2")
    assert later.restore(bench.state) is not None
    assert torch.equal(bench.state.restored, torch.full((3,), 10.0))  # type: ignore[arg-type]


def test_nothing_is_collected_before_all_ranks_have_uploaded(bench: Bench) -> None:
    bench.save(10)
    bench.gate.open.set()
    assert bench.saver._pending is not None
    bench.saver._pending._uploading.join()
    assert bench.saver.progress() == Progress(1.0, 0.0)
    assert bench.saver.advance(Progress(0.0, 0.0)) is None, "another rank still uploads"
    assert bench.committed() == []
    assert bench.turn() is None, "now the commit begins"
    bench.saver._pending._committing.join()  # type: ignore[union-attr]
    assert bench.saver.progress() == Progress(1.0, 1.0)
    saved = bench.turn()
    assert saved.step == 10
    assert not bench.saver.pending
    assert bench.turn() is None


def test_the_next_save_waits_and_says_so(bench: Bench) -> None:
    bench.save(10)
    threading.Timer(0.3, bench.gate.open.set).start()
    assert bench.save(20).step == 10
    assert [event["kind"] for event in bench.sink.events] == ["checkpoint", "checkpoint_waited"]
    assert bench.sink.events[1]["step"] == 10
    assert bench.saver.settle().step == 20  # type: ignore[union-attr]
    assert bench.committed() == [10, 20]


def test_a_failed_save_is_raised_by_whoever_waits(bench: Bench) -> None:
    bench.gate.error = InfraError("disk full", reason="disk_full")
    bench.save(10)
    bench.gate.open.set()
    with pytest.raises(InfraError, match="disk full"):
        bench.saver.settle()
    assert bench.committed() == []
    assert not bench.saver.pending


def test_the_same_step_again_gets_a_folder_of_its_own(bench: Bench) -> None:
    bench.gate.open.set()
    bench.save(10)
    bench.save(10)
    bench.saver.settle()
    folders = {key.rpartition("/")[0] for key in bench.store.objects if key.endswith(".safetensors")}
    assert {folder.rpartition("/")[2] for folder in folders} == {"a1", "a1.2"}


def test_shards_of_a_killed_attempt_leave_the_disk(bench: Bench) -> None:
    bench.gate.open.set()
    bench.save(10)
    bench.saver.settle()
    shards = bench.folder / "scratch/save/team/run"
    assert list((shards / "a1").iterdir()) == [], "what is uploaded is removed"
    (shards / "a1/1-20-rank-00000.safetensors").write_bytes(b"half")
    (shards.parent / "other/a9").mkdir(parents=True)
    bench.attempt("a2").restore(bench.state)
    assert not (shards / "a1").exists()
    assert (shards.parent / "other/a9").exists(), "another run's"


def test_without_a_copy_the_loop_waits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, background=False)
    bench.gate.open.set()
    assert bench.save(10).step == 10
    assert bench.committed() == [10]
    assert not bench.saver.pending


def test_old_ones_are_given_up_behind_the_commit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=1, keep_every=20)
    bench.gate.open.set()
    for step in (10, 20, 30, 40):
        bench.save(step)
    bench.saver.settle()
    assert bench.committed() == [20, 40]


def test_all_saves_share_one_cap(tmp_path: Path) -> None:
    bench = Bench(tmp_path, upload_limit_mb_per_s=2)
    bench.gate.open.set()
    for step in (10, 20):
        bench.save(step)
        bench.saver.settle()
    first, second = bench.store.limits
    assert first is not None
    assert first is second
    assert first.bytes_per_s == 2e6
    assert Bench(tmp_path / "other").saver._limit is None


def test_a_failure_gives_up_the_pending_upload(bench: Bench) -> None:
    opener = threading.Timer(0.2, bench.gate.open.set)

    def fail() -> None:
        with bench.saver:
            bench.save(10)
            opener.start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert bench.saver.progress() == Progress(1.0, 0.0), "the upload has ended"
    with pytest.raises(TransferCancelled):
        bench.saver.settle()
    assert not [key for key in bench.store.objects if "checkpoints" in key]


def test_an_ordinary_end_gives_up_nothing(bench: Bench) -> None:
    with bench.saver:
        bench.save(10)
    bench.gate.open.set()
    bench.saver.settle()
    assert bench.committed() == [10]
