"""What a preflight is to measure, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from warpbeam.preflight import sizes

QUICK_S: Final = 35.0
DRILL_S: Final = 80.0
WHOLE_S: Final = 600.0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One preflight.

    Args:
        quick: fewer sizes and links, within a minute.
        budget_s: from the command on, and at least half of it once all ranks are there; collectives end in time.
        join_s: how long ranks may take to appear.
        answer_s: how long a rank may take for something that moves no data between ranks.
        link_s: how long two ranks may take for each other.
        disk: the folder whose disk is measured.
        store: address of the store; None leaves it out.
        names: hosts that every rank looks up.
        pool: its name, for the keys of what is written.
    """

    quick: bool = False
    budget_s: float = WHOLE_S
    join_s: float = 600.0
    answer_s: float = 30.0
    link_s: float = 10.0
    disk: str | None = None
    store: dict[str, Any] | None = None
    names: tuple[str, ...] = ()
    pool: str = "local"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of collectives, in bytes."""
        return sizes.QUICK_SIZES if self.quick else sizes.SIZES

    @property
    def burn_s(self) -> float:
        """Of one rank's device."""
        return 0.5 if self.quick else 1.0
