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
    """A piece and its host tensor, or a function that returns it (float32), called when its turn comes."""

FORMAT = "warpbeam/shard/v1"


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


def write_shard(pieces: Iterable[PieceData], path: Path, rng: Mapping[str, torch.Tensor] | None = None) -> ShardInfo:
    """Write the pieces as `<kind>/<name>@<range or box>`, and random states as `rng/<name>`, to a new file.

    Raises:
        InfraError: the disk is full (reason `disk_full`); the half-written file is removed.
    """
    held = list(pieces)
    states = list((rng or {}).items())
    specs = [_spec(piece, produce) for piece, produce in held]
    crcs: dict[str, int] = {}

    def parts(spec: TensorSpec, produce: Produce) -> Iterator[memoryview]:
        tensor = produce() if callable(produce) else produce
        if (dtype_name(tensor.dtype), tuple(tensor.shape)) != (spec.dtype, spec.shape):
            raise ValueError(
                f"{spec.key}: got {tensor.dtype} {list(tensor.shape)}, announced {spec.dtype} {spec.shape}"
            )
        data = bytes_of(tensor.cpu())
        crcs[spec.key] = zlib.crc32(data)
        yield data

    named = [*zip(specs, (produce for _, produce in held), strict=True)]
    named += [(TensorSpec(f"rng/{name}", dtype_name(s.dtype), tuple(s.shape)), s) for name, s in states]
    written = write_safetensors(
        path,
        [(spec, lambda spec=spec, produce=produce: parts(spec, produce)) for spec, produce in named],  # type: ignore[misc]
        {"schema": FORMAT, "writer": WRITER},
    )
    places = list(zip(named, written.offsets, strict=True))
    return ShardInfo(
        written.size,
        written.sha256,
        [
            StoredPiece(piece, spec.dtype, offset, crcs[spec.key])
            for (piece, _), ((spec, _), offset) in zip(held, places, strict=False)
        ],
        [
            StoredRng(name, offset, spec.nbytes)
            for (name, _), ((spec, _), offset) in zip(states, places[len(held) :], strict=True)
        ],
    )


def _spec(piece: Piece, produce: Produce) -> TensorSpec:
    if callable(produce):
        return TensorSpec(str(piece), "F32", piece.local_shape)
    if tuple(produce.shape) != piece.local_shape:
        raise ValueError(f"{piece}: the tensor has shape {list(produce.shape)}, the piece {list(piece.local_shape)}")
    return TensorSpec(str(piece), dtype_name(produce.dtype), piece.local_shape)
