"""A crew whose ranks are a script, on a clock that only the script moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.unit.preflight.made_up import FACTS, ranks_on
from warpbeam.preflight.busbw import ELEMENT_BYTES
from warpbeam.preflight.crew import Answered, Died, Event, Failed, Joined
from warpbeam.preflight.measured import Rank

Order = dict[str, Any]
Reply = dict[str, Any] | str | None
"""A value; an error's words; None: silence."""


class Clock:
    """Seconds that pass when somebody waits."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


class ScriptedCrew:
    """Implements `Crew`.

    Args:
        replies: the script's own answers, tried before the healthy ones.
        absent: ranks that never come.
    """

    def __init__(
        self,
        clock: Clock,
        ranks: list[Rank] | None = None,
        *,
        replies: Callable[[int, Order], Reply] = lambda rank, order: healthy_reply(rank, order),
        absent: tuple[int, ...] = (),
    ) -> None:
        self.ranks = ranks if ranks is not None else ranks_on(2, 2)
        self.size = len(self.ranks)
        self.clock, self.replies, self.absent = clock, replies, absent
        self.heard: list[tuple[int, Order]] = []
        self.closed = False
        self.began, self.spoke = 0.0, False
        self.dies: dict[str, int] = {}
        """Probe -> the rank that dies of it."""
        self._events: deque[Event] = deque()

    def start(self) -> None:
        self._events.extend(Joined(rank) for rank in self.ranks if rank.rank not in self.absent)

    def send(self, rank: int, order: Order) -> None:
        self.heard.append((rank, order))
        if self.dies.get(order["probe"]) == rank:
            self._events.append(Died(rank, "ended by signal 9 (SIGKILL)"))
            return
        reply = self.replies(rank, order)
        if isinstance(reply, str):
            self._events.append(Failed(rank, order["id"], reply))
        elif reply is not None:
            self._events.append(Answered(rank, order["id"], reply))

    def next(self, timeout_s: float) -> Event | None:
        if self._events:
            return self._events.popleft()
        self.clock.at += timeout_s
        return None

    def state_of(self, rank: int) -> str:
        return f"process {1000 + rank} is stopped"

    def close(self) -> None:
        self.closed = True

    def asked(self, probe: str) -> list[tuple[int, Order]]:
        return [(rank, order) for rank, order in self.heard if order["probe"] == probe]


def healthy_reply(rank: int, order: Order) -> dict[str, Any]:
    """What a good rank answers."""
    match order["probe"]:
        case "clock":
            return {"at": 0.0}
        case "facts":
            return dict(FACTS)
        case "storage":
            return {"disk": {"error": "", "write": 1e9, "read": 1e9}, "store": None}
        case "burn":
            return {"flops": 1e12, "right": True, "memory_bandwidth": 1e10, "cpu_share": 1.0, "cpu_limit": None}
        case "open":
            return {"port": 29500 + rank}
        case "reach":
            return {"seconds": 1e-4}
        case "link":
            return {"latency_s": 1e-5, "ways": [1e9, 1e9], "right": True}
        case "collective":
            return {"seconds": order["size_bytes"] / 1e10 / ELEMENT_BYTES + 1e-5, "right": True}
    return {}
