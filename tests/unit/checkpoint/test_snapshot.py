"""The copy that a save works on: equal to the state at its moment, and deaf to what comes after."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.checkpoint.pieces import Piece, Range, whole
from warpbeam.checkpoint.snapshot import HostSnapshot

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(DTYPES), st.booleans()), max_size=8), st.booleans())
def test_every_piece_is_a_copy(sizes: list[tuple[int, torch.dtype, bool]], reserved: bool) -> None:
    tensors = [torch.arange(size).to(dtype) for size, dtype, _ in sizes]
    pieces = [Piece(f"p{i}", "weight", (len(t),), Range(0, len(t))) for i, t in enumerate(tensors)]
    snapshot = HostSnapshot()
    if reserved:
        snapshot.reserve(pieces)
    given_ = [
        (piece, (lambda tensor=tensor: tensor) if late else tensor)
        for piece, tensor, (_, _, late) in zip(pieces, tensors, sizes, strict=True)
    ]
    expected = [tensor.clone() for tensor in tensors]
    copies = snapshot.take(given_)
    for tensor in tensors:
        tensor.zero_()
    assert [piece for piece, _ in copies] == pieces
    for (_, copy), wanted, (_, dtype, late) in zip(copies, expected, sizes, strict=True):
        assert isinstance(copy, torch.Tensor)
        assert copy.dtype == (torch.float32 if late else dtype), "functions are stored as float32"
        assert torch.equal(copy, wanted.to(copy.dtype))
        assert copy.data_ptr() % 64 == 0 or not copy.numel()


def test_the_buffer_is_kept_from_save_to_save() -> None:
    snapshot, piece = HostSnapshot(), whole("w", "weight", (5, 7))
    first = snapshot.take([(piece, torch.ones(5, 7))])[0][1]
    second = snapshot.take([(piece, torch.zeros(5, 7))])[0][1]
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert first.data_ptr() == second.data_ptr()
