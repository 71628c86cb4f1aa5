"""What a rule can recognise in a line, and how sure the line alone makes it.

All patterns of all rules are compiled into one native matcher (scan.py); a rule only ever sees the lines that its own
signals brought. So no rule can match what the matcher has dropped, and a log costs one pass whatever the rules' number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

SURE = 0.92
"""The program that failed says itself what is wrong."""
LIKELY = 0.8
"""Other mechanisms can print it, but rarely do."""
POSSIBLE = 0.6
"""Worth naming only when nothing better speaks."""
HINT = 0.0
"""Says nothing alone: a rule weighs it together with others."""


class Reading(StrEnum):
    """What kind of text a line comes from, as far as signals care."""

    LOG = "log"
    STATE = "state"
    """What a component is, not what it prints: pod status, events, specs, environments, a node's tables."""


@dataclass(frozen=True)
class Signal:
    """One recognisable message.

    Args:
        pattern: a regular expression, case does not matter. Only what every engine understands: no look-around, no
            back-reference. Named groups become words of the finding.
        confidence: of the cause, when this line is all that is known, from 0 to 1.
        unless: a pattern that takes the line away: the same words in a message that means something else.
        only: lines of this kind alone; a common word such as "Running" means something in a pod's status only.
        told: people's words. They are looked for in excerpts and notes, not in gigabytes of logs, where no program
            prints them and they would only cost time.
    """

    pattern: str
    confidence: float = SURE
    unless: str | None = None
    only: Reading | None = None
    told: bool = False

    @cached_property
    def _found(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE)

    @cached_property
    def _taken(self) -> re.Pattern[str] | None:
        return re.compile(self.unless, re.IGNORECASE) if self.unless else None

    def match(self, line: str) -> re.Match[str] | None:
        """Where the message is in the line; None when it is not there, or means something else."""
        if self._taken is not None and self._taken.search(line):
            return None
        return self._found.search(line)


def says(*messages: str, at: float = SURE, unless: str | None = None) -> Signal:
    """What a program prints: any of these messages."""
    return Signal("|".join(messages), at, unless)


def state(*messages: str, at: float = SURE, unless: str | None = None) -> Signal:
    """What a component is: pod status, events, a node's tables."""
    return Signal("|".join(messages), at, unless, Reading.STATE)


def told(*messages: str, at: float = LIKELY, unless: str | None = None) -> Signal:
    """What a person or another tool says of it."""
    return Signal("|".join(messages), at, unless, told=True)
