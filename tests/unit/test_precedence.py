"""Who stands back, seen in real processes and threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from warpbeam.precedence import stand_in_front, standing_back

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="scheduling policies are Linux'")

POLICY = "import os; print(os.sched_getscheduler(0))"


def policy_of_a_child() -> int:
    return int(subprocess.run([sys.executable, "-c", POLICY], capture_output=True, check=True, text=True).stdout)


def test_what_is_started_inside_stands_back_and_what_comes_after_does_not() -> None:
    with standing_back():
        assert policy_of_a_child() == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert policy_of_a_child() == os.SCHED_OTHER


def test_the_thread_is_itself_again_after_an_error() -> None:
    with pytest.raises(RuntimeError), standing_back():
        raise RuntimeError
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_rank_stands_in_front_with_all_of_its_threads_but_the_first() -> None:
    ready, end = threading.Event(), threading.Event()
    helper = threading.Thread(target=lambda: (ready.set(), end.wait()))
    with standing_back():
        helper.start()
    try:
        ready.wait()
        assert helper.native_id is not None
        assert os.sched_getscheduler(helper.native_id) == os.SCHED_BATCH
        with standing_back():
            stand_in_front()
            assert os.sched_getscheduler(0) == os.SCHED_BATCH, "where Ray looks for signals"
        assert os.sched_getscheduler(helper.native_id) == os.SCHED_OTHER
    finally:
        end.set()
        helper.join()


def test_a_policy_that_somebody_chose_is_kept() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        chosen: list[int] = []
        with standing_back():
            rank = threading.Thread(target=lambda: (stand_in_front(), chosen.append(os.sched_getscheduler(0))))
            rank.start()
            rank.join()
        assert chosen == [os.SCHED_BATCH]
        with standing_back():
            pass
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
