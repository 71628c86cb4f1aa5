"""From a folder, a bundle or a run's record to facts: everything is read once, as a stream, and nothing is unpacked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from warpbeam.doctor import flight_recorder, place
from warpbeam.doctor.diagnose import signals
from warpbeam.doctor.facts import Facts
from warpbeam.doctor.scan import Scanner, file_blocks
from warpbeam.errors import UserError

Item = tuple[str, Iterable[bytes]]
"""A name (a path within what is read) and its bytes, block by block."""
NAMED = 5


@dataclass
class Collected:
    """What was read.

    Args:
        left_out: what was not, and why, in words.
    """

    facts: Facts
    files: int = 0
    size: int = 0
    left_out: list[str] = field(default_factory=list)


def collect(items: Iterable[Item], left_out: list[str] | None = None) -> Collected:
    """Read every item once; flight-recorder dumps are compared with each other at the end."""
    scanner = Scanner(signals())
    found = Collected(scanner.facts, left_out=left_out if left_out is not None else [])
    dumps: dict[int, Mapping[str, Any]] = {}
    for name, blocks in items:
        rank = flight_recorder.rank_of_dump(name)
        if rank is None:
            _read_text(scanner, found, name, blocks)
        else:
            _read_dump(found, dumps, rank, name, blocks)
    if dumps:
        lines = "\n".join(flight_recorder.analyse(dumps))
        scanner.read(place.source("flight recorder"), [lines.encode()])
    found.size = scanner.bytes_read
    return found


def folder_items(folder: Path, left_out: list[str]) -> Iterator[Item]:
    """The files below a folder, in order of their paths. Links are not followed: they may lead out of it, or round."""
    if not folder.is_dir():
        why = "it is a file" if folder.is_file() else "there is no such folder"
        raise UserError(
            f"{folder} cannot be read as logs",
            why=why,
            fix="--logs DIR wants a folder of log files; a tar goes to --bundle FILE",
            reason="no_such_logs",
        )
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name.startswith("debug_state"):
            continue  # Ray's counters, written again and again
        if path.is_symlink():
            left_out.append(f"{name}: a link")
        elif path.is_file():
            try:
                with path.open("rb") as file:
                    yield name, file_blocks(file)
            except OSError as error:
                left_out.append(f"{name}: {error.strerror}")


def _read_text(scanner: Scanner, found: Collected, name: str, blocks: Iterable[bytes]) -> None:
    stream = iter(blocks)
    first = next(stream, b"")
    if b"\0" in first[:1024]:
        found.left_out.append(f"{name}: not text")
        return
    if first:
        found.files += 1
        scanner.read(place.source(name), chain([first], stream))


def _read_dump(
    found: Collected, dumps: dict[int, Mapping[str, Any]], rank: int, name: str, blocks: Iterable[bytes]
) -> None:
    data = b""
    for block in blocks:
        data += block
        if len(data) > flight_recorder.DUMP_BYTES:
            break
    try:
        dumps[rank] = flight_recorder.load(data)
        found.files += 1
    except flight_recorder.BadDump as error:
        found.left_out.append(f"{name}: {error}")
