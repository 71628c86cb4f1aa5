"""Uploads in a child process: the same store to whoever uses it, and no child outlives its use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import psutil
import pytest

from tests.unit.storage.contract import StoreContract
from warpbeam.errors import InfraError
from warpbeam.storage import StorageConfig, open_store
from warpbeam.storage.bandwidth import Bandwidth
from warpbeam.storage.parts import PART_BYTES
from warpbeam.storage.store import TransferCancelled
from warpbeam.storage.upload_process import UploadsElsewhere

T = TypeVar("T")
SIZE = 3 * PART_BYTES


@pytest.fixture
def store(s3: StorageConfig) -> Iterator[UploadsElsewhere]:
    found = UploadsElsewhere(open_store(replace(s3, uri=f"{s3.uri}/uploads-{uuid4().hex[:8]}")))
    yield found
    found.close()
    assert children() == []


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(SIZE))
    return path


class TestUploadsElsewhere(StoreContract):
    pass


def test_a_child_that_is_killed_is_an_error_and_the_next_upload_has_another(store: UploadsElsewhere, big: Path) -> None:
    slow = Bandwidth(PART_BYTES / 4)
    errors: list[BaseException] = []
    thread = in_thread(lambda: store.upload(big, "big", limit=slow), errors)
    (child,) = until(children)
    child.kill()
    thread.join(30)
    assert [error.reason for error in errors if isinstance(error, InfraError)] == ["upload_process"]
    store.upload(big, "big")
    found = store.head("big")
    assert found is not None
    assert found.size == SIZE


def test_an_upload_that_is_given_up_ends_and_leaves_nothing(store: UploadsElsewhere, big: Path) -> None:
    cancel, errors = threading.Event(), list[BaseException]()
    thread = in_thread(lambda: store.upload(big, "big", limit=Bandwidth(PART_BYTES / 20), cancel=cancel), errors)
    until(lambda: list(store.unfinished("")))
    cancel.set()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(errors[0], TransferCancelled)
    assert list(store.unfinished("")) == []
    store.upload(big, "big")  # the word to give up is not left for the next one


def test_a_child_ends_with_its_parent_and_not_by_the_groups_signals(s3: StorageConfig, big: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom warpbeam.storage import StorageConfig, open_store\n"
        "from warpbeam.storage.bandwidth import Bandwidth\n"
        "from warpbeam.storage.upload_process import UploadsElsewhere\n"
        "store = UploadsElsewhere(open_store(StorageConfig.from_dict(eval(sys.argv[1]))))\n"
        f"store.upload(Path(sys.argv[2]), 'orphan/{uuid4().hex}', limit=Bandwidth({PART_BYTES // 20}))\n"
    )
    command = [sys.executable, "-c", program, repr(s3.to_dict()), str(big)]
    parent = subprocess.Popen(command, start_new_session=True)
    (child,) = until(lambda: psutil.Process(parent.pid).children())
    until(lambda: len(child.threads()) > 2)  # it uploads
    os.kill(child.pid, signal.SIGINT)
    time.sleep(0.5)
    assert child.is_running()
    parent.kill()
    parent.wait()
    child.wait(10)


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "warpbeam.storage.upload_process" in command_line(one)]


def command_line(process: psutil.Process) -> list[str]:
    """Empty for one that has ended: other tests of this session have children of their own."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie among them
        return []


def in_thread(work: Callable[[], object], errors: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def until(what: Callable[[], T]) -> T:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("not in 30 s")
