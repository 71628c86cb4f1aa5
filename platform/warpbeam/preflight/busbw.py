"""Bandwidth of collectives as nccl-tests counts it, so that figures can be compared with everybody else's.

algbw is the operation's size divided by its time. busbw multiplies it by what the hardware must move for each byte of
it, so that it does not depend on the number of ranks and can be held against a link's speed (nccl-tests,
doc/PERFORMANCE.md).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

ELEMENT_BYTES: Final = 4
"""fp32, the default of nccl-tests."""


class Op(StrEnum):
    """What is measured; the words of nccl-tests."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"

    @property
    def shares(self) -> bool:
        """Whether the size is cut into one equal share a rank."""
        return self is not Op.ALL_REDUCE

    @property
    def words(self) -> str:
        """As people write it."""
        return self.value.replace("_", "-")


def factor(op: Op, ranks: int) -> float:
    """busbw / algbw: `2 (n - 1) / n` for all-reduce, `(n - 1) / n` for the others."""
    return (2.0 if op is Op.ALL_REDUCE else 1.0) * (ranks - 1) / ranks


def bus_bandwidth(op: Op, size_bytes: int, seconds: float, ranks: int) -> float:
    """Bytes/s.

    Args:
        size_bytes: of one rank's buffer for all-reduce and all-to-all; of the whole result (input) of all ranks
            together for all-gather (reduce-scatter).
        seconds: of one operation, the mean over ranks.
    """
    return size_bytes / seconds * factor(op, ranks)


def legal_size(op: Op, size_bytes: int, ranks: int) -> int:
    """The size that is measured for one asked for: whole elements, an equal share for each rank, at least one."""
    step = ELEMENT_BYTES * (ranks if op.shares else 1)
    return max(size_bytes // step, 1) * step


def buffer_bytes(op: Op, size_bytes: int, ranks: int) -> int:
    """What one rank holds for an operation of this size: its input and its output."""
    match op:
        case Op.ALL_REDUCE:
            return size_bytes
        case Op.ALL_TO_ALL:
            return 2 * size_bytes
    return size_bytes + size_bytes // ranks
