"""One rank's shard file: its pieces, and its random states, in one safetensors file that anybody's tools can open.

The header needs only shapes and dtypes, so it goes first and each tensor follows as it is produced: memory is bounded
by the largest piece when the strategy yields functions instead of tensors. Hashes are taken on the way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from warpbeam.checkpoint.pieces import Piece
from warpbeam.checkpoint.safetensors_file import TensorSpec, bytes_of, dtype_name, write_safetensors
from warpbeam.checkpoint.schema import WRITER

if TYPE_CHECKING:
    import torch

    Produce = torch.Tensor | Callable[[], torch.Tensor]
    PieceData = tuple[Piece, Produce]
    """A piece and its host tensor, or a function that finds it where it lives, called when its turn comes; what a
    function finds is stored as float32."""

FORMAT = "warpbeam/shard/v1"
_RNG = "rng/"


class StoredPiece(NamedTuple):
    """A piece in a shard file; `offset` is absolute, in bytes; `crc32` is of the piece's own bytes."""

    piece: Piece
    dtype: str
    offset: int
    crc32: int


class StoredRng(NamedTuple):
    """A random state in a shard file: bytes [offset, offset + size)."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class ShardInfo:
    """What a rank tells rank 0 about its file."""

    size: int
    sha256: str
    pieces: list[StoredPiece]
    rng: list[StoredRng]


@dataclass
class _Item:
    """One tensor of the file; `piece` is None for a random state. `crc32` is known once it is written."""

    spec: TensorSpec
    produce: Produce
    piece: Piece | None
    crc32: int = 0

    def parts(self) -> Iterator[memoryview]:
        import torch

        tensor = self.produce().detach().to("cpu", torch.float32) if callable(self.produce) else self.produce
        if (dtype_name(tensor.dtype), tuple(tensor.shape)) != (self.spec.dtype, self.spec.shape):
            found = f"{tensor.dtype} {list(tensor.shape)}"
            raise ValueError(f"{self.spec.key}: got {found}, announced {self.spec.dtype} {list(self.spec.shape)}")
        data = bytes_of(tensor)
        self.crc32 = zlib.crc32(data)
        yield data


def write_shard(pieces: Iterable[PieceData], path: Path, rng: Mapping[str, torch.Tensor] | None = None) -> ShardInfo:
    """Write the pieces as `<kind>/<name>@<range or box>`, and random states as `rng/<name>`, to a new file.

    Raises:
        InfraError: the disk is full (reason `disk_full`); the half-written file is removed.
    """
    items = [_Item(_spec(piece, produce), produce, piece) for piece, produce in pieces]
    for name, state in (rng or {}).items():
        items.append(_Item(TensorSpec(f"{_RNG}{name}", dtype_name(state.dtype), tuple(state.shape)), state, None))
    written = write_safetensors(path, [(item.spec, item.parts) for item in items], {"schema": FORMAT, "writer": WRITER})
    info = ShardInfo(written.size, written.sha256, [], [])
    for item, offset in zip(items, written.offsets, strict=True):
        if item.piece is None:
            info.rng.append(StoredRng(item.spec.key.removeprefix(_RNG), offset, item.spec.nbytes))
        else:
            info.pieces.append(StoredPiece(item.piece, item.spec.dtype, offset, item.crc32))
    return info


def _spec(piece: Piece, produce: Produce) -> TensorSpec:
    if callable(produce):
        return TensorSpec(str(piece), "F32", piece.local_shape)
    if tuple(produce.shape) != piece.local_shape:
        raise ValueError(f"{piece}: the tensor has shape {list(produce.shape)}, the piece {list(piece.local_shape)}")
    return TensorSpec(str(piece), dtype_name(produce.dtype), piece.local_shape)
