"""The ranks of a preflight as whoever conducts it sees them: orders go out, events come back.

A launcher brings them up; orders and answers travel over its own wires, never over the links that are measured, so that
a dead link cannot hide who is behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from warpbeam.preflight.measured import Rank


@dataclass(frozen=True)
class Joined:
    """A rank is there."""

    who: Rank

    @property
    def rank(self) -> int:
        """Its number."""
        return self.who.rank


@dataclass(frozen=True)
class Answered:
    """A rank has done what it was told."""

    rank: int
    order: int
    value: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """What a rank was told failed there; the rank goes on."""

    rank: int
    order: int
    what: str


@dataclass(frozen=True)
class Died:
    """A rank's process is gone."""

    rank: int
    what: str


Event = Joined | Answered | Failed | Died


class Crew(Protocol):
    """Ranks 0 to `size - 1`."""

    size: int

    def start(self) -> None:
        """Begin to bring them up; each says `Joined`."""
        ...

    def send(self, rank: int, order: dict[str, Any]) -> None:
        """Tell a rank something; `order["id"]` comes back with what came of it."""
        ...

    def next(self, timeout_s: float) -> Event | None:
        """The next event, or None when there was none in time."""
        ...

    def state_of(self, rank: int) -> str:
        """What is known from outside about a rank that does not answer; empty where nothing is."""
        ...

    def close(self) -> None:
        """End every rank and whatever was started for them."""
        ...
