"""The bytes of a part: fixed-stride rows, so that a row is found by multiplication and read from a memory map.

A row is `uint32 tokens[seq_len]` then `uint8 flags[seq_len]`, little-endian. What a trainer needs beside the tokens is
derived from the flags when a row is read, by one function, so that no two copies can disagree:

- labels: the token itself where it is a target, else -100 (aligned with the tokens: the model shifts). An example's
  first token is never a target, because nothing of its own example precedes it; so shifting inside a row never crosses
  examples and the loss tokens of a row are exactly its labels other than -100;
- positions restart and segments count up at each example's first token;
- padding is one more segment at the end, with positions of its own and no targets: attention never sees an empty row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED = -100
"""The label of a token without loss (the default `ignore_index` of torch's cross entropy)."""

TARGET, FIRST, PADDING = np.uint8(1), np.uint8(2), np.uint8(4)
_BYTES_PER_TOKEN = 5


def stride(seq_len: int) -> int:
    """Bytes of one row."""
    return seq_len * _BYTES_PER_TOKEN


@dataclass(frozen=True)
class PartData:
    """One task's rows, ready to be stored."""

    data: bytes
    loss_tokens: list[int]
    """Of each row."""


def encode_part(
    examples: Sequence[tuple[NDArray[np.integer], NDArray[np.bool_]]], rows: Sequence[Sequence[int]], seq_len: int
) -> PartData:
    """Lay examples out in rows.

    Args:
        examples: (token ids, which of them carry loss) of each example.
        rows: which examples share a row, from `pack`.
    """
    tokens = np.zeros((len(rows), seq_len), "<u4")
    flags = np.full((len(rows), seq_len), PADDING, np.uint8)
    for r, row in enumerate(rows):
        end = 0
        for i in row:
            ids, loss = examples[i]
            start, end = end, end + len(ids)
            tokens[r, start:end] = ids
            flags[r, start:end] = loss
            flags[r, start] = FIRST
        if end < seq_len:
            flags[r, end] |= FIRST
    block = np.empty((len(rows), stride(seq_len)), np.uint8)
    block[:, : 4 * seq_len] = tokens.view(np.uint8)
    block[:, 4 * seq_len :] = flags
    loss_tokens = (flags & TARGET).sum(axis=1, dtype=np.int64).tolist()
    return PartData(block.tobytes(), loss_tokens)


@dataclass(frozen=True)
class Rows:
    """Rows as a trainer reads them, each [rows, seq_len]; ids and labels are int64, as torch wants them."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    segment_ids: NDArray[np.int32]


def decode_rows(block: NDArray[np.uint8], seq_len: int) -> Rows:
    """Rows of a part (uint8 [rows, stride]) as ids, labels, positions and segments."""
    ids = block[:, : 4 * seq_len].view("<u4").astype(np.int64)
    flags = block[:, 4 * seq_len :]
    first = (flags & FIRST) != 0
    labels = np.where(flags & TARGET, ids, IGNORED)
    places = np.arange(seq_len, dtype=np.int64)
    started = np.maximum.accumulate(np.where(first, places, 0), axis=1)
    segments = np.cumsum(first, axis=1, dtype=np.int32) - np.int32(1)
    return Rows(ids, labels, places - started, segments)


def blank_rows(count: int, seq_len: int) -> NDArray[np.uint8]:
    """Rows of padding alone: they weigh nothing in the loss."""
    block = np.zeros((count, stride(seq_len)), np.uint8)
    block[:, 4 * seq_len :] = PADDING
    block[:, 4 * seq_len] |= FIRST
    return block
