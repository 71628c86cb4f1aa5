"""How a large object is cut for its transfer: equal parts, in order, as S3 allows them.

Some stores (R2) want all parts but the last to be of one size, so they are, everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

PART_BYTES = 16 << 20
"""Of a part, unless more of them would be needed than S3 takes."""
MIN_PART_BYTES = 5 << 20
"""S3's least for every part but the last."""
MAX_PARTS = 10_000
"""S3's most for one object."""
THREADS = 4
"""Parts of one upload that are on their way, and in memory, at once."""


class Part(NamedTuple):
    """Bytes [start, start + size) of an object; `number` counts from 1."""

    number: int
    start: int
    size: int


def cut(size: int, part_bytes: int = PART_BYTES) -> list[Part]:
    """The parts of an object of `size` bytes, none for an empty one; every byte is in exactly one.

    Parts are of `part_bytes`, or larger by as much as keeps them at MAX_PARTS or fewer; the last has what is left.
    """
    if size < 0 or part_bytes < MIN_PART_BYTES:
        raise ValueError(f"cannot cut {size} bytes into parts of {part_bytes}")
    each = max(part_bytes, -(-size // MAX_PARTS))
    return [Part(number, start, min(each, size - start)) for number, start in enumerate(range(0, size, each), start=1)]
