"""One pass over any number of logs in bounded memory: which lines say what the rules know.

All signals of all rules become one Hyperscan database, which reads a block of bytes at the speed of memory and reports
(signal, place). Python looks only at the lines it reports, and only until enough of a kind are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, BinaryIO

from warpbeam.doctor import place
from warpbeam.doctor.facts import Fact, Facts, Source
from warpbeam.doctor.signal import Reading, Signal
from warpbeam.errors import PlatformError

BLOCK_BYTES = 1 << 20
LINE_BYTES = 4096
"""What is looked at of one line, around the place where the matcher stopped."""
HEAD_BYTES = 240
"""Where a line says what level it is."""
PER_SOURCE = 64
"""Lines of one signal that are taken from one source."""
TRIED = 4096
"""Lines of one signal that are looked at in one source: a log may be full of near misses."""


class Scanner:
    """Feeds lines to signals: `read` each log, then take `facts`."""

    def __init__(self, signals: Iterable[Signal]) -> None:
        self.facts = Facts()
        self.bytes_read = 0
        self._signals = tuple(dict.fromkeys(signals))

    def read(self, source: Source, blocks: Iterable[bytes]) -> None:
        """One log, as blocks of bytes in order. Memory: two blocks."""
        if source.rank is not None:
            self.facts.ranks.add(source.rank)
        database, signals = compiled(self._signals, source.reading, source.told)
        wanted = [PER_SOURCE] * len(signals)
        tried = [0] * len(signals)
        last = b""
        for block in whole_lines(blocks):
            self.bytes_read += len(block)
            seen: set[tuple[int, int]] = set()
            for number, end in matches(database, block):
                if not wanted[number] or tried[number] == TRIED:
                    continue
                start = block.rfind(b"\n", 0, max(end - 1, 0)) + 1
                if (number, start) not in seen:
                    seen.add((number, start))
                    tried[number] += 1
                    if place.calm(_text(block[start : start + HEAD_BYTES].partition(b"\n")[0]), source):
                        continue
                    wanted[number] -= self._take(source, signals[number], _line(block, start, end))
            last = block.rstrip().rpartition(b"\n")[2] or last
        self.facts.last_lines[source] = _text(last[-HEAD_BYTES:])

    def _take(self, source: Source, signal: Signal, line: str) -> bool:
        """Keep what the signal says of this line; false when it is a near miss."""
        found = signal.match(line)
        if found is None:
            return False
        rank = place.rank_of(line, source)
        if rank is not None:
            self.facts.ranks.add(rank)
        words = {name: word for name, word in found.groupdict().items() if word}
        node, pod = place.node_of(line, source), place.pod_of(line, source)
        self.facts.add(Fact(signal, source, line.strip(), place.time_of(line), rank, node, pod, words))
        return True


@cache
def compiled(signals: tuple[Signal, ...], reading: Reading, told: bool) -> tuple[Any, tuple[Signal, ...]]:
    """The matcher of all signals that this kind of text can show, and the signals by number."""
    try:
        import hyperscan
    except ImportError as error:
        raise PlatformError(
            "the doctor needs hyperscan, which is not installed here",
            why="it has no wheel for this kind of machine (Linux on ARM)",
            fix="look at the run or at a copy of the logs from another machine: it reads the same store and any folder",
            reason="no_matcher",
        ) from error
    wanted = tuple(signal for signal in signals if signal.only in (None, reading) and (told or not signal.told))
    database = hyperscan.Database()
    database.compile(
        expressions=[signal.pattern.encode() for signal in wanted],
        ids=list(range(len(wanted))),
        flags=[hyperscan.HS_FLAG_CASELESS | hyperscan.HS_FLAG_MULTILINE] * len(wanted),
    )
    return database, wanted


def matches(database: Any, block: bytes) -> list[tuple[int, int]]:
    """(number of the signal, offset behind its match) in this block."""
    found: list[tuple[int, int]] = []

    def note(number: int, _start: int, end: int, _flags: int, _context: Any) -> None:
        found.append((number, end))

    database.scan(block, match_event_handler=note)
    return found


def whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut behind line ends. A line longer than a block is cut where the block ends."""
    rest = b""
    for block in blocks:
        cut = block.rfind(b"\n") + 1
        if cut == 0 and len(rest) < BLOCK_BYTES:
            rest += block
            continue
        yield rest + block[:cut]
        rest = block[cut:]
    if rest:
        yield rest


def file_blocks(file: BinaryIO) -> Iterator[bytes]:
    """A file's content, block by block."""
    while block := file.read(BLOCK_BYTES):
        yield block


def _line(block: bytes, start: int, end: int) -> str:
    stop = block.find(b"\n", end - 1 if end else 0)
    stop = len(block) if stop < 0 else stop
    if stop - start > LINE_BYTES:
        start, stop = max(start, end - LINE_BYTES // 2), min(stop, end + LINE_BYTES // 2)
    return _text(block[start:stop])


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip("\r\n")
