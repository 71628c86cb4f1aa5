from __future__ import annotations

import os
import signal

import pytest

from warpbeam.launch.interrupt import Interrupts, Killed


def test_the_first_asks_the_second_insists() -> None:
    asked: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(lambda: asked.append(1)) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.requested
        with pytest.raises(Killed):
            os.kill(os.getpid(), signal.SIGTERM)
    assert asked == [1]
    assert signal.getsignal(signal.SIGINT) is before
