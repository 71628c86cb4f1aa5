"""One rank's shard file: written as a stream, in the safetensors format, so that anybody's tools can open it.

The header needs only shapes and dtypes, so it goes first and each tensor follows as it is produced: memory is bounded
by the largest piece when the strategy yields functions instead of tensors. Hashes are taken on the way.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from warpbeam.checkpoint.manifest import DTYPE_BYTES
from warpbeam.checkpoint.pieces import Piece
from warpbeam.checkpoint.schema import WRITER
from warpbeam.storage.disk import disk_errors

if TYPE_CHECKING:
    import torch

    Produce = torch.Tensor | Callable[[], torch.Tensor]
    PieceData = tuple[Piece, Produce]
    """A piece and its host tensor, or a function that returns it (float32), called when its turn comes."""

FORMAT = "warpbeam/shard/v1"


class StoredPiece(NamedTuple):
    """A piece in a shard file; `offset` is absolute, in bytes."""

    piece: Piece
    dtype: str
    offset: int
    crc32: int


@dataclass
class ShardInfo:
    """What a rank tells rank 0 about its file."""

    size: int
    sha256: str
    pieces: list[StoredPiece] = field(default_factory=list)
    rng: list[tuple[str, int, int]] = field(default_factory=list)
    """(name, offset, size in bytes) of each random state."""


class _Part(NamedTuple):
    key: str
    piece: Piece | None
    produce: Produce
    dtype: str
    shape: tuple[int, ...]
    size: int


def write_shard(pieces: Iterable[PieceData], path: Path, rng: Mapping[str, torch.Tensor] | None = None) -> ShardInfo:
    """Write the pieces, and random states as `rng/<name>`, to a new safetensors file.

    Raises:
        InfraError: the disk is full (reason `disk_full`); the half-written file is removed.
    """
    parts = [_part(str(piece), piece, data) for piece, data in pieces]
    parts += [_part(f"rng/{name}", None, state) for name, state in (rng or {}).items()]
    parts.sort(key=lambda part: -DTYPE_BYTES[part.dtype])  # stable; every tensor stays aligned to its dtype
    header = _header(parts)
    info = ShardInfo(size=len(header) + sum(part.size for part in parts), sha256="")
    digest = hashlib.sha256(header)
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(header)
                for part in parts:
                    offset = file.tell()
                    data = _bytes_of(part)
                    digest.update(data)
                    file.write(data)
                    if part.piece is None:
                        info.rng.append((part.key.removeprefix("rng/"), offset, part.size))
                    else:
                        info.pieces.append(StoredPiece(part.piece, part.dtype, offset, zlib.crc32(data)))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    info.sha256 = digest.hexdigest()
    return info


def _part(key: str, piece: Piece | None, produce: Produce) -> _Part:
    if callable(produce):
        if piece is None:
            raise TypeError(f"{key}: a random state must be a tensor")
        dtype, shape = "F32", piece.local_shape
    else:
        dtype, shape = dtype_name(produce), tuple(produce.shape)
    if piece is not None and shape != piece.local_shape:
        raise ValueError(f"{piece}: the tensor has shape {list(shape)}, the piece {list(piece.local_shape)}")
    size = DTYPE_BYTES[dtype]
    for extent in shape:
        size *= extent
    return _Part(key, piece, produce, dtype, shape, size)


def _header(parts: list[_Part]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "schema": FORMAT, "writer": WRITER}}
    start = 0
    for part in parts:
        if part.key in entries:
            raise ValueError(f"{part.key} is in the shard twice")
        end = start + part.size
        entries[part.key] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(part: _Part) -> memoryview:
    import torch

    tensor = part.produce() if callable(part.produce) else part.produce
    if tuple(tensor.shape) != part.shape or dtype_name(tensor) != part.dtype:
        found = f"{dtype_name(tensor)} {list(tensor.shape)}"
        raise ValueError(f"{part.key}: got {found}, announced {part.dtype} {list(part.shape)}")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")


def dtype_name(tensor: torch.Tensor) -> str:
    """Safetensors' name of a tensor's dtype."""
    return _names()[tensor.dtype]


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of safetensors' name."""
    return next(dtype for dtype, known in _names().items() if known == name)


def _names() -> dict[torch.dtype, str]:
    import torch

    return {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
    }
