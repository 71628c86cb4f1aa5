"""Which attempt of a run explains how the run ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.record.test_view import claimed, log_lines
from warpbeam.doctor.from_record import examine, of_the_loop, watched
from warpbeam.doctor.kinds import Kind
from warpbeam.errors import UserError
from warpbeam.record import black_box, keys
from warpbeam.record.stream import StreamWriter
from warpbeam.record.view import RunView
from warpbeam.storage.local import LocalStore

PORT = b"The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n"
STANDS = b"Timeout (0:00:06)!\nThread 0x7f (most recent call first):\n"


def event_lines(store: LocalStore, attempt: str, *events: dict[str, Any]) -> None:
    writer = StreamWriter(store, keys.stream("support", "sft", attempt, "events", "driver"), "jsonl")
    for event in events:
        writer.append(json.dumps(event).encode() + b"\n")
    writer.flush()


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    store = LocalStore(tmp_path / "store")
    for attempt in ("0001-aa", "0002-bb", "0003-cc"):
        claimed(store, attempt)
    log_lines(store, "0001-aa", "rank-0", PORT)
    log_lines(store, "0003-cc", "rank-0", b"step 9\n")
    return RunView(store, "support", "sft")


def test_what_was_got_over_explains_nothing_once_a_later_attempt_has_a_cause(view: RunView) -> None:
    store = view.store
    assert isinstance(store, LocalStore)
    log_lines(store, "0002-bb", "rank-0", STANDS)
    log_lines(store, "0002-bb", "rank-1", b"step 9\n")
    _, answer = examine(view)
    assert answer.first is not None
    assert (answer.first.kind, answer.first.where) == (Kind.SLOW_OR_ABSENT_RANK, "rank 1")


def test_an_older_attempt_is_asked_where_the_newer_ones_say_nothing(view: RunView) -> None:
    _, answer = examine(view)
    assert answer.first is not None
    assert answer.first.rule == "port_taken"


def boxed(store: LocalStore, attempt: str, **files: bytes) -> None:
    names = ("support", "sft", attempt)
    black_box.keep(store, names, "machine-a", [(name.replace("__", "."), data) for name, data in files.items()])


def test_the_black_box_is_read_with_the_record(view: RunView) -> None:
    store = view.store
    assert isinstance(store, LocalStore)
    boxed(store, "0003-cc", memory__txt=b"kernel: ended 1 process(es) of this container for want of memory\n")
    event_lines(store, "0003-cc", {"kind": "failed", "what": "rank 1 died without a word: killed or crashed", "at": 9})
    read, answer = examine(view)
    assert answer.first is not None
    assert (answer.first.kind, answer.first.where) == (Kind.HOST_OOM, "rank 1")
    assert not read.left_out


def test_a_log_that_is_there_in_full_is_not_read_twice(view: RunView) -> None:
    store = view.store
    assert isinstance(store, LocalStore)
    files = {"rank-0.log": PORT, "rank-7.log": b"step 9\n"}
    black_box.keep(store, ("support", "sft", "0003-cc"), "driver", list(files.items()))
    _, answer = examine(view)
    assert answer.first is not None
    assert answer.first.rule == "port_taken", "of the older attempt: the box's copy of rank 0's log was passed over"
    assert answer.first.evidence[0].source.where.startswith("0001-aa")


def test_what_the_monitor_saw_counts_near_the_end_or_when_it_was_certain() -> None:
    what = "heartbeats: rank 1 stood at step 3 in forward, the others wait in sync for 40 s"
    seen = {"kind": "monitor", "what": what, "at": 1000.0, "certain": False}
    assert len(watched([seen, {"kind": "stopping", "at": 1300.0}])) == 1
    assert watched([seen, {"kind": "stopping", "at": 9000.0}]) == []
    assert len(watched([{**seen, "certain": True}, {"kind": "stopping", "at": 9000.0}])) == 1
    assert watched([seen])[0].endswith(what)


def test_of_stacks_the_helpers_waiting_in_queues_are_not_read() -> None:
    helper = b'Thread 0x1 (most recent call first):\n  File "queue.py", line 171 in get\n\n'
    loop = b'Thread 0x2 (most recent call first):\n  File "distributed_c10d.py", line 9 in all_reduce\n  in run_rank\n'
    crashed = b'Fatal Python error: Segmentation fault\n\nCurrent thread 0x3 (most recent call first):\n  File "x"\n'
    assert of_the_loop(helper + loop + helper + crashed) == loop + crashed
    assert of_the_loop(crashed + helper) == crashed


def test_a_box_that_is_no_tar_is_refused_in_words(view: RunView) -> None:
    view.store.put("teams/support/runs/sft/record/0003-cc/black-box/machine-a.tar.gz", b"not a tar")
    with pytest.raises(UserError, match="cannot be read as a bundle"):
        examine(view)
