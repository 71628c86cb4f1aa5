"""Follow a run that may outlast the network: its logs, and its end.

Nothing here guesses. A store that is away is asked again; an end is reported only when the record says so, and if it
cannot be learnt, that is its own answer (`UnknownFate`, exit code 4), never "it has ended".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from warpbeam.errors import InfraError, UnknownFate
from warpbeam.record.states import RunState
from warpbeam.record.stream import StreamReader
from warpbeam.record.view import LogPiece, RunView

POLL_S = 1.0
GIVE_UP_S = 600.0  # how long a store may be away
SETTLE_S = 10.0  # how long a run must look interrupted: a new attempt may be on its way

T = TypeVar("T")


class Patience:
    """Asks again while the store is away; says so once; gives up after `GIVE_UP_S`."""

    def __init__(self, on_trouble: Callable[[str], None], sleep: Callable[[float], None], now: Callable[[], float]):
        self._on_trouble = on_trouble
        self._sleep = sleep
        self._now = now

    def ask(self, question: Callable[[], T]) -> T:
        """The answer, however long it takes within the limit."""
        since: float | None = None
        while True:
            try:
                return question()
            except InfraError as error:
                if since is None:
                    since = self._now()
                    self._on_trouble(f"{error.what}; trying again")
                if self._now() - since > GIVE_UP_S:
                    raise UnknownFate(
                        f"the record could not be read for {GIVE_UP_S / 60:.0f} minutes",
                        why=str(error),
                        fix="run the command again when the store can be reached; the run goes on meanwhile",
                        reason="record_unreachable",
                    ) from error
                self._sleep(POLL_S)


def follow_logs(
    view: RunView,
    *,
    rank: int | None = None,
    follow: bool = True,
    since_s: float | None = None,
    state_of: Callable[[], tuple[RunState, str]] | None = None,
    on_trouble: Callable[[str], None] = lambda text: None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[LogPiece]:
    """What the processes printed, from the run's beginning; with `follow`, until it has ended.

    Args:
        since_s: only what was written in the last so many seconds, in whole pieces of the record.
        state_of: instead of the view's, where more than the record is to be asked.
    """
    patience = Patience(on_trouble, sleep, now)
    readers: dict[str, StreamReader] = {}
    while True:
        ended = patience.ask(state_of or view.state)[
            0
        ].ended  # asked first: what was written before the end is read after it
        for piece in patience.ask(lambda: view.logs(readers, since_s)):
            if rank is None or piece.who == f"rank-{rank}":
                yield piece
        if ended or not follow:
            return
        sleep(POLL_S)


def wait_for_end(
    view: RunView,
    *,
    state_of: Callable[[], tuple[RunState, str]] | None = None,
    on_trouble: Callable[[str], None] = lambda text: None,
    on_state: Callable[[RunState], None] = lambda state: None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> tuple[RunState, str]:
    """The state that a run ends in, and its reason. `interrupted` is returned once it has lasted `SETTLE_S`.

    Args:
        state_of: instead of the view's, where more than the record is to be asked.
    """
    patience = Patience(on_trouble, sleep, now)
    before: RunState | None = None
    since = now()
    while True:
        state, reason = patience.ask(state_of or view.state)
        if state is not before:
            before, since = state, now()
            on_state(state)
        if state.ended and (state is not RunState.INTERRUPTED or now() - since >= SETTLE_S):
            return state, reason
        sleep(POLL_S)
