from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.data.arrays import Arrays
from warpbeam.data.pack import pack
from warpbeam.data.part import IGNORED, Rows, blank_rows, decode_rows, encode_part, stride

SEQ_LEN = 12


@st.composite
def some_examples(draw: st.DrawFn) -> list[Arrays]:
    lengths = draw(st.lists(st.integers(1, SEQ_LEN), max_size=12))
    tokens = st.integers(0, 2**32 - 1)
    return [
        (
            np.array(draw(st.lists(tokens, min_size=n, max_size=n)), np.int64),
            np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_),
        )
        for n in lengths
    ]


def block_of(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8).reshape(-1, stride(SEQ_LEN))


def oracle(examples: list[Arrays], rows: list[list[int]]) -> list[dict[str, list[int]]]:
    """What a trainer must see, token by token."""
    seen = []
    for row in rows:
        ids: list[int] = []
        labels: list[int] = []
        positions: list[int] = []
        segments: list[int] = []
        for segment, i in enumerate(row):
            for place, (token, loss) in enumerate(zip(*examples[i], strict=True)):
                ids.append(int(token))
                labels.append(int(token) if loss and place > 0 else IGNORED)
                positions.append(place)
                segments.append(segment)
        padding = SEQ_LEN - len(ids)
        ids += [0] * padding
        labels += [IGNORED] * padding
        positions += range(padding)
        segments += [len(row)] * padding
        seen.append({"input_ids": ids, "labels": labels, "position_ids": positions, "segment_ids": segments})
    return seen


@given(some_examples(), st.booleans())
def test_rows_read_back_as_the_oracle_says(examples: list[Arrays], packing: bool) -> None:
    rows = pack([len(ids) for ids, _ in examples], SEQ_LEN, packing=packing)
    part = encode_part(examples, rows, SEQ_LEN)
    got = decode_rows(block_of(part.data), SEQ_LEN)
    for r, want in enumerate(oracle(examples, rows)):
        for name, values in want.items():
            assert getattr(got, name)[r].tolist() == values


@given(some_examples())
def test_loss_tokens_are_the_targets_after_the_model_s_shift(examples: list[Arrays]) -> None:
    """Shifted inside the row, each target is predicted from a token of its own example."""
    rows = pack([len(ids) for ids, _ in examples], SEQ_LEN)
    part = encode_part(examples, rows, SEQ_LEN)
    got = decode_rows(block_of(part.data), SEQ_LEN)
    targets = got.labels[:, 1:] != IGNORED
    assert targets.sum(axis=1).tolist() == part.loss_tokens
    assert (got.segment_ids[:, 1:][targets] == got.segment_ids[:, :-1][targets]).all()
    assert sum(part.loss_tokens) == sum(int(loss[1:].sum()) for _, loss in examples)


def test_a_part_without_rows_is_empty() -> None:
    part = encode_part([], [], SEQ_LEN)
    assert (part.data, part.loss_tokens) == (b"", [])


def test_a_full_row_has_no_padding_segment() -> None:
    part = encode_part([(np.arange(SEQ_LEN), np.ones(SEQ_LEN, np.bool_))], [[0]], SEQ_LEN)
    got = decode_rows(block_of(part.data), SEQ_LEN)
    assert got.segment_ids[0].tolist() == [0] * SEQ_LEN
    assert part.loss_tokens == [SEQ_LEN - 1]


def test_blank_rows_are_padding_without_loss() -> None:
    blank = blank_rows(2, SEQ_LEN)
    got: Rows = decode_rows(blank, SEQ_LEN)
    assert (got.labels == IGNORED).all()
    assert (got.segment_ids == 0).all()
    assert got.position_ids[1].tolist() == list(range(SEQ_LEN))


def test_the_bytes_are_frozen() -> None:
    """Other programs may read parts: little-endian uint32 tokens, then one byte of flags each."""
    part = encode_part([(np.array([7, 258]), np.array([True, True]))], [[0]], 3)
    assert part.data == bytes([7, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]) + bytes([2, 1, 6])
