"""A laboratory that lives as long as the program that asked for it, and not a moment longer."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.layout import REPOSITORY, Place

END_S = 60


@contextmanager
def kept(place: Place, *, real_nodes: int = 3, say: Callable[[str], None] = print) -> Iterator[Laboratory]:
    """Start one there, clearing away what an earlier program left; it ends with the block, or with this program.

    Raises:
        LabError: it does not come up.
    """
    found = Laboratory(place)
    with open(f"{place.root}.lock", "w") as lock:
        # The keeper inherits the lock: who comes too early waits until the last one is cleared away.
        fcntl.flock(lock, fcntl.LOCK_EX)
        found.down()
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.kube.lab.keeper", str(place.root)],
            stdin=subprocess.PIPE,
            cwd=REPOSITORY,
            pass_fds=(lock.fileno(),),
            start_new_session=True,
        )
        try:
            found.up(real_nodes=real_nodes, say=say)
            yield found
        finally:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait(timeout=END_S)
