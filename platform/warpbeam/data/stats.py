"""What became of a task's records: nothing is left out without being counted under a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from warpbeam.data.files import SourceFile
from warpbeam.data.records import name_places

if TYPE_CHECKING:
    from warpbeam.storage import StorageConfig

KEPT_PLACES = 5
DETAIL_CHARS = 500
"""An error's words may quote a whole record."""


class BadPlace(NamedTuple):
    """Where a bad record is and what is wrong with it; `describe_places` names the lines."""

    file: SourceFile
    offset: int
    reason: str
    detail: str


@dataclass
class TaskStats:
    """What became of a task's records."""

    lines: int = 0
    """Lines or rows, blank ones included."""
    records: int = 0
    """Bad ones included, blank ones not."""
    bad: dict[str, int] = field(default_factory=dict)
    """Reason code -> records."""
    places: list[BadPlace] = field(default_factory=list)
    """The first few bad ones."""
    blank: int = 0
    """Texts without anything but white space."""
    left_out: int = 0
    """By code.render."""
    truncated: int = 0
    split: int = 0
    dropped: int = 0
    """Records longer than seq_len, by what was done."""
    remainders: int = 0
    """Pieces of a split record that carry no loss, left out."""
    examples: int = 0
    tokens: int = 0
    loss_tokens: int = 0

    def bad_record(self, file: SourceFile, offset: int, reason: str, detail: str) -> None:
        """Count a bad record and keep its place if it is among the first."""
        self.bad[reason] = self.bad.get(reason, 0) + 1
        if len(self.places) < KEPT_PLACES:
            self.places.append(BadPlace(file, offset, reason, detail[:DETAIL_CHARS]))


def describe_places(places: Sequence[BadPlace], config: StorageConfig | None) -> list[str]:
    """`file:line: reason: detail` of each; reads the files up to there, each once."""
    named: dict[tuple[SourceFile, int], str] = {}
    for file in {place.file for place in places}:
        offsets = [place.offset for place in places if place.file == file]
        named.update(zip(((file, offset) for offset in offsets), name_places(file, offsets, config), strict=True))
    return [f"{named[place.file, place.offset]}: {place.reason}: {place.detail}" for place in places]
