"""The arithmetic of sharded tensors: which elements of a tensor a piece holds, and what two pieces share.

A checkpoint stores *pieces* of canonical tensors, never a strategy's flat buffers, so that any strategy at any world
size can read what any other wrote. A piece is either a row-major range [a, b) of the tensor (ZeRO cuts inside rows) or
an index box (FSDP2 and tensor parallelism cut along dimensions). Everything here is integers: no torch, no I/O.

The one idea that makes both kinds meet: a range of an n-dimensional row-major tensor is at most 2n-1 boxes in order,
each of them contiguous in the range. So every piece is a short list of *blocks* (a box, and where its elements begin in
the piece's own flat storage), the overlap of two blocks is a box, and a box inside a block is a strided `View`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal, NamedTuple

Kind = Literal["weight", "exp_avg", "exp_avg_sq", "buffer"]
Shape = tuple[int, ...]


class Range(NamedTuple):
    """Elements [a, b) of a tensor, counted in row-major order."""

    a: int
    b: int


class Box(NamedTuple):
    """A hyper-rectangle of a tensor: `sizes[d]` indices from `offsets[d]` on, in each dimension d."""

    offsets: Shape
    sizes: Shape


@dataclass(frozen=True)
class Piece:
    """Part of one canonical tensor. `shape` is the whole tensor's; `index` says which elements are meant."""

    name: str
    kind: Kind
    shape: Shape
    index: Range | Box

    @property
    def numel(self) -> int:
        """How many elements the piece holds."""
        return self.index.b - self.index.a if isinstance(self.index, Range) else prod(self.index.sizes)

    @property
    def local_shape(self) -> Shape:
        """Shape of the tensor that carries the piece: 1-D for a range, the box's sizes for a box."""
        return (self.numel,) if isinstance(self.index, Range) else self.index.sizes

    def __str__(self) -> str:
        where = f"{self.index.a}-{self.index.b}" if isinstance(self.index, Range) else _box_text(self.index)
        return f"{self.kind}/{self.name}@{where}"


class View(NamedTuple):
    """A strided view of a piece's flat storage, in elements: the arguments of `torch.as_strided`."""

    offset: int
    sizes: Shape
    strides: Shape

    @property
    def numel(self) -> int:
        """How many elements the view shows."""
        return prod(self.sizes)

    @property
    def span(self) -> Range:
        """The smallest flat range of the piece's storage that holds every element of the view."""
        last = self.offset + sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))
        return Range(self.offset, last + 1)


class Overlap(NamedTuple):
    """The same elements, seen in the piece that is asked for and in the piece that is stored."""

    asked: View
    stored: View


class _Block(NamedTuple):
    """A box whose elements lie one after another in the piece's storage, from `start` on."""

    box: Box
    start: int


def whole(name: str, kind: Kind, shape: Sequence[int]) -> Piece:
    """The piece that is all of a tensor, as one range."""
    return Piece(name, kind, tuple(shape), Range(0, prod(shape)))


def row_strides(shape: Shape) -> Shape:
    """Row-major strides of a dense tensor, in elements."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)


def range_to_boxes(shape: Shape, a: int, b: int) -> list[Box]:
    """The boxes, in order, that are exactly the elements [a, b): at most 2n-1 for n dimensions.

    Each box is contiguous in row-major order: whole in every dimension after the one it is cut in.
    """
    if not 0 <= a <= b <= prod(shape):
        raise ValueError(f"range [{a}, {b}) lies outside a tensor of shape {list(shape)}")
    if a == b:
        return []
    if not shape:
        return [Box((), ())]
    inner = prod(shape[1:])
    if inner == 1 and len(shape) == 1:
        return [Box((a,), (b - a,))]
    first, last = a // inner, (b - 1) // inner
    if first == last:
        return _in_row(shape, first, a - first * inner, b - first * inner)
    boxes: list[Box] = []
    if a % inner:
        boxes += _in_row(shape, first, a - first * inner, inner)
        first += 1
    full_end = b // inner
    if full_end > first:
        boxes.append(Box((first, *([0] * (len(shape) - 1))), (full_end - first, *shape[1:])))
    if b % inner:
        boxes += _in_row(shape, full_end, 0, b - full_end * inner)
    return boxes


def _in_row(shape: Shape, row: int, a: int, b: int) -> list[Box]:
    return [Box((row, *box.offsets), (1, *box.sizes)) for box in range_to_boxes(shape[1:], a, b)]


def _contiguous_from(shape: Shape, box: Box) -> int:
    """The first dimension from which on the box is one contiguous stretch for fixed earlier indices."""
    cut = len(shape)
    while cut > 0 and box.sizes[cut:] == shape[cut:]:
        cut -= 1
    while cut > 0 and box.sizes[cut - 1] == 1 and all(size == 1 for size in box.sizes[:cut]):
        cut -= 1
    return cut


def check_box(shape: Shape, box: Box) -> None:
    """Raise ValueError when the box does not lie inside the shape."""
    fits = len(box.offsets) == len(box.sizes) == len(shape) and all(
        offset >= 0 and size >= 0 and offset + size <= extent
        for offset, size, extent in zip(box.offsets, box.sizes, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"box {_box_text(box)} lies outside a tensor of shape {list(shape)}")


def as_range(piece: Piece) -> Range | None:
    """The piece as one row-major range, where it is one (every dim-0 shard is), else None."""
    if isinstance(piece.index, Range):
        return piece.index
    if piece.numel == 0:
        return Range(0, 0)
    cut = _contiguous_from(piece.shape, piece.index)
    if prod(piece.index.sizes[:cut]) != 1:
        return None
    start = _ravel(piece.index.offsets, row_strides(piece.shape))
    return Range(start, start + piece.numel)


def overlaps(asked: Piece, stored: Piece) -> list[Overlap]:
    """What two pieces of the same tensor share, as pairs of views with equal sizes; empty when nothing."""
    if asked.shape != stored.shape:
        raise ValueError(f"{asked} has shape {list(asked.shape)}, {stored} has {list(stored.shape)}")
    left, right = as_range(asked), as_range(stored)
    if left is not None and right is not None:  # the usual case, and one contiguous copy
        a, b = max(left.a, right.a), min(left.b, right.b)
        return [Overlap(View(a - left.a, (b - a,), (1,)), View(a - right.a, (b - a,), (1,)))] if a < b else []
    shared: list[Overlap] = []
    for mine in _blocks(asked):
        for theirs in _blocks(stored):
            common = intersect(mine.box, theirs.box)
            if common is not None:
                shared.append(Overlap(_view(mine, common), _view(theirs, common)))
    return shared


def intersect(one: Box, other: Box) -> Box | None:
    """The box that two boxes share, or None."""
    offsets = tuple(map(max, one.offsets, other.offsets))
    ends = tuple(
        min(o1 + s1, o2 + s2) for o1, s1, o2, s2 in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    )
    sizes = tuple(end - offset for offset, end in zip(offsets, ends, strict=True))
    return Box(offsets, sizes) if all(size > 0 for size in sizes) else None


def _blocks(piece: Piece) -> list[_Block]:
    if isinstance(piece.index, Box):
        check_box(piece.shape, piece.index)
        return [_Block(piece.index, 0)] if piece.numel else []
    blocks, start = [], 0
    for box in range_to_boxes(piece.shape, piece.index.a, piece.index.b):
        blocks.append(_Block(box, start))
        start += prod(box.sizes)
    return blocks


def _view(block: _Block, inside: Box) -> View:
    strides = row_strides(block.box.sizes)
    relative = tuple(o - b for o, b in zip(inside.offsets, block.box.offsets, strict=True))
    return View(block.start + _ravel(relative, strides), inside.sizes, strides)


def _ravel(index: Shape, strides: Shape) -> int:
    return sum(i * s for i, s in zip(index, strides, strict=True))


def cover_fault(shape: Shape, pieces: Iterable[Piece]) -> str | None:
    """None when the pieces hold every element of the tensor exactly once; else what is wrong, in words."""
    parts = [piece for piece in pieces if piece.numel]
    total = prod(shape)
    for piece in parts:
        if piece.shape != shape:
            return f"{piece} has shape {list(piece.shape)}, others {list(shape)}"
    ranges = [as_range(piece) for piece in parts]
    if all(r is not None for r in ranges):
        return _range_cover_fault(total, sorted(r for r in ranges if r is not None))
    blocks = [block.box for piece in parts for block in _blocks(piece)]
    fault = _twice(len(shape), blocks)
    if fault:
        return fault
    held = sum(prod(box.sizes) for box in blocks)
    return None if held == total else f"{total - held} of {total} elements are in no piece"


def _range_cover_fault(total: int, ranges: list[Range]) -> str | None:
    bounds = [Range(0, 0), *ranges, Range(total, total)]
    for before, after in pairwise(bounds):
        if after.a > before.b:
            return f"elements {before.b}-{after.a} are in no piece"
        if after.a < before.b:
            return f"elements {after.a}-{min(before.b, after.b)} are in two pieces"
    return None


def _twice(dims: int, boxes: list[Box]) -> str | None:
    """Names a box that shares elements with another. Sweeps along the dimension that the boxes are cut in most."""
    if dims == 0:
        return "the only element is in two pieces" if len(boxes) > 1 else None
    axis = max(range(dims), key=lambda dim: len({box.offsets[dim] for box in boxes}))
    active: list[Box] = []
    for box in sorted(boxes, key=lambda box: box.offsets[axis]):
        active = [other for other in active if other.offsets[axis] + other.sizes[axis] > box.offsets[axis]]
        for other in active:
            common = intersect(box, other)
            if common is not None:
                return f"box {_box_text(common)} is in two pieces"
        active.append(box)
    return None


def split_range(numel: int, parts: int) -> list[Range]:
    """Cut [0, numel) into ranges of ceil(numel / parts), as ZeRO does, without its padding: the last may be empty."""
    size = -(-numel // parts)
    return [Range(min(i * size, numel), min((i + 1) * size, numel)) for i in range(parts)]


def _box_text(box: Box) -> str:
    return f"{','.join(map(str, box.offsets))}+{','.join(map(str, box.sizes))}"
