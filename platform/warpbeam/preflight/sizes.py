"""Which sizes a collective is measured at: from 8 bytes to 1 GB, as far as memory and time reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpbeam.preflight.busbw import Op, buffer_bytes, legal_size

LARGEST: Final = 1 << 30
SIZES: Final = tuple(8 << (3 * power) for power in range(10))
"""8 B, 64 B, 512 B, 4 KiB ... 128 MiB, 1 GiB."""
QUICK_SIZES: Final = (8, 64 << 10, 1 << 20, 16 << 20, 128 << 20, 1 << 30)
MEMORY_SHARE: Final = 0.25
"""Of a node's free memory, for the buffers of all its ranks together."""
MOST_REPEATS: Final = 20
REPEAT_S: Final = 0.3
"""How long the repeats of one size may take together, where they are quick."""


@dataclass(frozen=True)
class Room:
    """What one node, or one device, leaves for buffers.

    Args:
        free_bytes: free memory of the node; of the device, where ranks have one.
        ranks: that share it.
    """

    free_bytes: int
    ranks: int

    def holds(self, op: Op, size_bytes: int, world_size: int) -> bool:
        """Whether the buffers of all ranks stay below their share."""
        wanted = self.ranks * buffer_bytes(op, legal_size(op, size_bytes, world_size), world_size)
        return wanted <= MEMORY_SHARE * self.free_bytes


def fitting(op: Op, sizes: tuple[int, ...], world_size: int, rooms: list[Room]) -> tuple[int, ...]:
    """The sizes whose buffers fit on every node; always the ones before the first that does not."""
    found = []
    for size in sizes:
        if not all(room.holds(op, size, world_size) for room in rooms):
            break
        found.append(size)
    return tuple(found)


def repeats(predicted_s: float | None, left_s: float) -> int:
    """How often an operation is repeated for one figure; 0 where not even one (and its check) fits into the time left.

    Args:
        predicted_s: of one operation; None where nothing is known yet.
    """
    if predicted_s is None:
        return 5
    if 2 * predicted_s > left_s:
        return 0
    wanted = max(1, min(MOST_REPEATS, int(REPEAT_S / max(predicted_s, 1e-9))))
    return max(1, min(wanted, int(left_s / max(predicted_s, 1e-9)) - 1))


def predicted_s(last_s: float | None, last_bytes: int, next_bytes: int) -> float | None:
    """From the last size's time: the same for small sizes, in proportion for those that bandwidth limits."""
    if last_s is None:
        return None
    return last_s * (next_bytes / last_bytes) if last_bytes >= 64 << 10 else last_s * 2
