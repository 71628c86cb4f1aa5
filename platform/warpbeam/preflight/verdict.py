"""The answer: rows for a table, who is to blame, and what a script learns from the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from warpbeam.errors import Owner
from warpbeam.preflight.measured import Measured

SCHEMA: Final = "warpbeam/preflight/v1"
PASSED, FOUND, UNKNOWN = 0, 1, 4
"""Exit codes as the doctor's (DESIGN §7): nothing is wrong; it is known what; something is wrong, nobody knows what."""


class Level(StrEnum):
    """How a row stands."""

    OK = "ok"
    INFO = "-"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        measured, wanted: as text with units; `wanted` is empty where nothing was promised.
        where: whose value it is, where it is one's: of several the worst.
    """

    check: str
    measured: str
    wanted: str = ""
    level: Level = Level.OK
    where: str = ""
    note: str = ""


@dataclass(frozen=True)
class Suspect:
    """Whoever is to blame for a failed check.

    Args:
        where: `rank 3`, `node gpu-7`, `ranks 1 and 2` (a link), or `job`: nobody alone.
        what: one sentence.
        ranks, nodes: the same for machines.
        do: what to try next.
    """

    where: str
    what: str
    owner: Owner
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    do: str = ""

    @property
    def named(self) -> bool:
        """Whether it is somebody in particular."""
        return self.where != "job"


@dataclass(frozen=True)
class Verdict:
    """Everything that is said about one preflight."""

    rows: tuple[Row, ...]
    suspects: tuple[Suspect, ...]

    @property
    def passed(self) -> bool:
        """Whether a job may be started; warnings do not forbid it."""
        return not self.suspects and all(row.level is not Level.FAIL for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0, 1 or 4."""
        if self.passed:
            return PASSED
        return FOUND if self.suspects else UNKNOWN

    @property
    def sentence(self) -> str:
        """The verdict in a line."""
        if self.passed:
            warned = sum(row.level is Level.WARN for row in self.rows)
            return f"passed, {warned} to look at" if warned else "passed"
        if not self.suspects:
            failed = next(row for row in self.rows if row.level is Level.FAIL)
            return f"failed: {failed.check} {failed.measured}; nobody in particular is to blame"
        first = self.suspects[0]
        more = f" (and {len(self.suspects) - 1} more)" if len(self.suspects) > 1 else ""
        return f"failed: {first.where}: {first.what}{more}"

    def to_dict(self, measured: Measured, *, pool: str | None) -> dict[str, Any]:
        """For `--json`: the verdict, and everything that it was made from."""
        return {
            "schema": SCHEMA,
            "pool": pool,
            "passed": self.passed,
            "sentence": self.sentence,
            "suspects": [asdict(suspect) for suspect in self.suspects],
            "rows": [asdict(row) for row in self.rows],
            "measured": measured.to_dict(),
        }


def rank_words(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 3 and 4`, `ranks 0-7`, `ranks 1, 4 and 2 more`."""
    found = sorted(set(ranks))
    if len(found) == 1:
        return f"rank {found[0]}"
    if len(found) == 2:
        return f"ranks {found[0]} and {found[1]}"
    if found == list(range(found[0], found[-1] + 1)):
        return f"ranks {found[0]}-{found[-1]}"
    if len(found) <= 4:
        return f"ranks {', '.join(map(str, found[:-1]))} and {found[-1]}"
    return f"ranks {found[0]}, {found[1]} and {len(found) - 2} more"
