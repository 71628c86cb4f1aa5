"""What became of a task's records: nothing is left out without being counted under a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from warpbeam.data.files import SourceFile
from warpbeam.data.records import name_places
from warpbeam.errors import WarpbeamError

if TYPE_CHECKING:
    from warpbeam.storage import StorageConfig

KEPT_PLACES = 5
DETAIL_CHARS = 500
"""An error's words may quote a whole record."""
NAMED_WITHIN_BYTES = 64 << 20
"""A line's number is found by reading the file up to it; a mere note does not read further than this."""


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


def describe_outcome(stats: TaskStats, seq_len: int, config: StorageConfig | None) -> list[str]:
    """What became of records that were not used whole, in words; empty when all were."""
    told = []
    if stats.bad:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(stats.bad.items()))
        told.append(f"{sum(stats.bad.values()):,} of {stats.records:,} records skipped as bad: {reasons}")
        told += _first_places(stats.places, config)
    done = {"truncated": stats.truncated, "split": stats.split, "dropped": stats.dropped}
    if any(done.values()):
        how = ", ".join(f"{count:,} {word}" for word, count in done.items() if count)
        pieces = f"; {stats.remainders:,} pieces without loss left out" if stats.remainders else ""
        told.append(
            f"{sum(done.values()):,} of {stats.records:,} records longer than {seq_len:,} tokens: {how}{pieces}"
        )
    unused = {"blank": stats.blank, "left out by code.render": stats.left_out}
    told += [f"{count:,} of {stats.records:,} records {word}" for word, count in unused.items() if count]
    return told


def _first_places(places: Sequence[BadPlace], config: StorageConfig | None) -> list[str]:
    """The first bad record by its line, where that costs no long reading and the file is still the same."""
    if not places or places[0].offset > NAMED_WITHIN_BYTES:
        return []
    try:
        return [f"the first: {describe_places(places[:1], config)[0]}"]
    except WarpbeamError:  # prepared before; the file has gone or changed since
        return []


def describe_places(places: Sequence[BadPlace], config: StorageConfig | None) -> list[str]:
    """`file:line: reason: detail` of each; reads the files up to there, each once."""
    named: dict[tuple[SourceFile, int], str] = {}
    for file in {place.file for place in places}:
        offsets = [place.offset for place in places if place.file == file]
        named.update(zip(((file, offset) for offset in offsets), name_places(file, offsets, config), strict=True))
    return [f"{named[place.file, place.offset]}: {place.reason}: {place.detail}" for place in places]
