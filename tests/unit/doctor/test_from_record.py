"""Which attempt of a run explains how the run ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.record.test_view import claimed, log_lines
from warpbeam.doctor.from_record import examine
from warpbeam.doctor.kinds import Kind
from warpbeam.record.view import RunView
from warpbeam.storage.local import LocalStore

PORT = b"The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n"
STANDS = b"Timeout (0:00:06)!\nThread 0x7f (most recent call first):\n"


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
