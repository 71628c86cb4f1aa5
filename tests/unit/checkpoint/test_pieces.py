"""Every element exactly once, whatever is cut into whatever: the arithmetic under resharding, against brute force."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpbeam.checkpoint.pieces import (
    Box,
    Piece,
    Range,
    as_range,
    cover_fault,
    intersect,
    overlaps,
    range_to_boxes,
    row_strides,
    split_range,
    whole,
)

shapes = st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple)


@st.composite
def ranges(draw, shape):
    a = draw(st.integers(0, prod(shape)))
    return Range(a, draw(st.integers(a, prod(shape))))


@st.composite
def boxes(draw, shape):
    offsets = tuple(draw(st.integers(0, extent)) for extent in shape)
    return Box(offsets, tuple(draw(st.integers(0, e - o)) for o, e in zip(offsets, shape, strict=True)))


def elements(shape, index):
    """Flat numbers of an index's elements, in the order in which its piece carries them."""
    flat = np.arange(prod(shape)).reshape(shape)
    if isinstance(index, Range):
        return flat.reshape(-1)[index.a : index.b]
    box = flat[tuple(slice(o, o + s) for o, s in zip(index.offsets, index.sizes, strict=True))]
    return np.ascontiguousarray(box).reshape(-1)


def shown(view, piece):
    """Flat numbers of the elements that a view shows of a piece's storage."""
    storage = elements(piece.shape, piece.index)
    positions = [
        view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True))
        for index in product(*map(range, view.sizes))
    ]
    return storage[positions]


@given(st.data(), shapes)
def test_a_range_is_at_most_2n_minus_1_boxes_in_order(data, shape) -> None:
    a, b = data.draw(ranges(shape))
    found = range_to_boxes(shape, a, b)
    assert len(found) <= max(1, 2 * len(shape) - 1)
    assert [int(e) for box in found for e in elements(shape, box)] == list(range(a, b))


@given(st.data(), shapes)
def test_a_box_that_is_contiguous_is_a_range_and_no_other(data, shape) -> None:
    piece = Piece("w", "weight", shape, data.draw(boxes(shape)))
    flat, numbers = as_range(piece), elements(shape, piece.index)
    contiguous = numbers.tolist() == list(range(numbers[0], numbers[0] + len(numbers))) if len(numbers) else True
    assert (flat is not None) == contiguous
    if flat is not None and len(numbers):
        assert (flat.a, flat.b) == (numbers[0], numbers[-1] + 1)


@given(st.data(), shapes)
def test_overlaps_are_the_common_elements_once_in_both_pieces(data, shape) -> None:
    either = st.one_of(ranges(shape), boxes(shape))
    asked = Piece("w", "weight", shape, data.draw(either))
    stored = Piece("w", "weight", shape, data.draw(either))
    found = []
    for mine, theirs in overlaps(asked, stored):
        assert mine.sizes == theirs.sizes
        assert shown(mine, asked).tolist() == shown(theirs, stored).tolist()
        span = theirs.span
        assert 0 <= span.a < span.b <= stored.numel
        found += shown(mine, asked).tolist()
    common = set(elements(shape, asked.index).tolist()) & set(elements(shape, stored.index).tolist())
    assert sorted(found) == sorted(common)


@given(st.data(), shapes)
def test_intersect_is_the_common_box(data, shape) -> None:
    one, other = data.draw(boxes(shape)), data.draw(boxes(shape))
    common = set(elements(shape, one).tolist()) & set(elements(shape, other).tolist())
    found = intersect(one, other)
    assert set(elements(shape, found).tolist() if found else []) == common


@st.composite
def layouts(draw, shape):
    """A partition of a tensor: recursive cuts along any dimension, some parts as ranges."""
    parts = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6)) if shape else 0):
        box = parts.pop(draw(st.integers(0, len(parts) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, box.sizes[dim]))
        for start, size in ((0, at), (at, box.sizes[dim] - at)):
            offsets, sizes = list(box.offsets), list(box.sizes)
            offsets[dim] += start
            sizes[dim] = size
            parts.append(Box(tuple(offsets), tuple(sizes)))
    pieces = []
    for box in parts:
        flat = as_range(Piece("w", "weight", shape, box))
        pieces.append(Piece("w", "weight", shape, flat if flat is not None and draw(st.booleans()) else box))
    return pieces


@given(st.data(), shapes)
def test_a_partition_has_no_cover_fault(data, shape) -> None:
    assert cover_fault(shape, data.draw(layouts(shape))) is None


@given(st.data(), shapes)
def test_a_hole_or_a_double_is_found(data, shape) -> None:
    pieces = [piece for piece in data.draw(layouts(shape)) if piece.numel]
    victim = data.draw(st.integers(0, len(pieces) - 1))
    assert "no piece" in str(cover_fault(shape, pieces[:victim] + pieces[victim + 1 :]))
    assert "two pieces" in str(cover_fault(shape, [*pieces, pieces[victim]]))


@given(st.integers(0, 1000), st.integers(1, 70))
def test_split_range_is_zeros_partition_without_padding(numel, world) -> None:
    parts = split_range(numel, world)
    assert len(parts) == world
    assert [e for part in parts for e in range(part.a, part.b)] == list(range(numel))
    size = -(-numel // world)
    assert all(part.b - part.a == size or part.b == numel for part in parts)


@settings(max_examples=50)
@given(st.data(), shapes)
def test_copying_by_overlaps_moves_a_tensor_between_any_two_layouts(data, shape) -> None:
    source, target = data.draw(layouts(shape)), data.draw(layouts(shape))
    for asked in target:
        out = np.full(asked.numel, -1)
        for stored in source:
            storage = elements(shape, stored.index)
            for mine, theirs in overlaps(asked, stored):
                strided = np.lib.stride_tricks.as_strided
                item = out.itemsize
                into = strided(out[mine.offset :], mine.sizes, [s * item for s in mine.strides])
                into[...] = strided(storage[theirs.offset :], theirs.sizes, [s * item for s in theirs.strides])
        assert out.tolist() == elements(shape, asked.index).tolist()


def test_scalars_and_empty_tensors() -> None:
    assert range_to_boxes((), 0, 1) == [Box((), ())]
    assert as_range(Piece("s", "weight", (), Box((), ()))) == Range(0, 1)
    assert cover_fault((), [whole("s", "weight", ())]) is None
    assert cover_fault((), []) == "elements 0-1 are in no piece"
    assert cover_fault((0, 3), []) is None
    assert row_strides((4, 3, 2)) == (6, 2, 1)


def test_what_lies_outside_is_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        range_to_boxes((2, 3), 0, 7)
    with pytest.raises(ValueError, match="outside"):
        overlaps(whole("w", "weight", (2, 3)), Piece("w", "weight", (2, 3), Box((0, 2), (2, 2))))
    with pytest.raises(ValueError, match="shape"):
        overlaps(whole("w", "weight", (2, 3)), whole("w", "weight", (3, 2)))


def test_names_are_readable() -> None:
    assert str(Piece("a.b", "exp_avg", (4, 4), Range(3, 9))) == "exp_avg/a.b@3-9"
    assert str(Piece("a.b", "weight", (4, 4), Box((0, 2), (4, 2)))) == "weight/a.b@0,2+4,2"
