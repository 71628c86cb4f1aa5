"""What a launch switches on in a rank, and what it leaves as the user has set it."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from warpbeam.train.diagnostics import STACK_SIGNAL, Stacks, stacks_path, variables

FOLDER = Path("/tmp/attempt")


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[Stacks]:
    usual = signal.getsignal(STACK_SIGNAL)
    yield Stacks(tmp_path / "ranks", 3)
    faulthandler.unregister(STACK_SIGNAL)
    faulthandler.enable()
    signal.signal(STACK_SIGNAL, usual)


def test_nccl_warns_into_a_file_of_each_rank_and_dumps_when_it_times_out() -> None:
    assert variables(FOLDER, 3, nccl=True, env={}) == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": "/tmp/attempt/fr_trace_rank_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "NCCL_DEBUG": "WARN",
        "NCCL_DEBUG_FILE": "/tmp/attempt/rank-3.nccl.txt",
    }


def test_without_nccl_there_is_only_the_flight_recorder() -> None:
    assert variables(FOLDER, 0, nccl=False, env={}) == {"TORCH_FR_BUFFER_SIZE": "2000"}


def test_what_the_user_has_set_stays_by_either_name() -> None:
    theirs = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine/trace_",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "NCCL_DEBUG": "INFO",
    }
    assert variables(FOLDER, 0, nccl=True, env=theirs) == {}
    own_file = variables(FOLDER, 0, nccl=True, env={"NCCL_DEBUG_FILE": "/mine/%p"})
    assert own_file["NCCL_DEBUG_FILE"] == "/mine/%p"


def test_the_pinned_torch_knows_the_names() -> None:
    """Names change from release to release; those that torch reads are in its library."""
    import torch

    library = (Path(torch.__file__).parent / "lib" / "libtorch_cpu.so").read_bytes()
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"):
        assert name.encode() in library, name


def test_stacks_are_written_when_asked_by_signal_and_when_late(stacks: Stacks, tmp_path: Path) -> None:
    path = stacks_path(tmp_path / "ranks", 3)
    os.kill(os.getpid(), STACK_SIGNAL)
    asked = path.read_text()
    assert "test_stacks_are_written" in asked
    stacks.write()
    assert "this rank is late" in path.read_text()
    assert path.read_text().count("test_stacks_are_written") == 2


def test_a_good_end_leaves_nothing_behind(stacks: Stacks, tmp_path: Path) -> None:
    stacks.note_environment()
    stacks.write()
    (tmp_path / "ranks" / "rank-33.env").write_text("another rank's")
    stacks.remove()
    assert [path.name for path in (tmp_path / "ranks").iterdir()] == ["rank-33.env"]
