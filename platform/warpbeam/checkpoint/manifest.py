"""The manifest of a checkpoint: which files it has, and where in them each piece of each canonical tensor lies.

Written after all files, and trusted only through a commit entry of the run's log that carries its sha256. It is the
shard map: with it, any range or box of any tensor is one ranged GET per stored piece, at any later world size.
"""

from __future__ import annotations

import hashlib
import json
import math
from math import prod
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from warpbeam.checkpoint.pieces import Box, Kind, Piece, Range, cover_fault
from warpbeam.checkpoint.safetensors_file import DTYPE_BYTES
from warpbeam.checkpoint.schema import WRITER, check_schema
from warpbeam.errors import PlatformError

SCHEMA = "warpbeam/checkpoint/v1"


class CheckpointBroken(PlatformError):
    """A committed checkpoint has a missing or damaged object. Names the object."""

    default_reason = "checkpoint_broken"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class FileEntry(_Model):
    """One stored file. `key` is relative to the store."""

    key: str
    size: int
    sha256: str
    rank: int


class TensorEntry(_Model):
    """One canonical tensor: its global shape and the dtype it is stored in (safetensors' names)."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str


class PieceEntry(_Model):
    """Where a piece lies: `tensor` and `file` are positions in the manifest's lists, `offset` is absolute in the file.

    Either `a`, `b` (a row-major range) or `offsets`, `sizes` (a box). `crc32` is of the piece's bytes.
    """

    tensor: int
    file: int
    offset: int
    crc32: int
    a: int | None = None
    b: int | None = None
    offsets: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None

    @classmethod
    def of(cls, piece: Piece, *, tensor: int, file: int, offset: int, crc32: int) -> PieceEntry:
        """The entry of a piece."""
        where = dict(
            zip(("a", "b") if isinstance(piece.index, Range) else ("offsets", "sizes"), piece.index, strict=True)
        )
        return cls.model_validate({"tensor": tensor, "file": file, "offset": offset, "crc32": crc32, **where})

    def index(self) -> Range | Box:
        """The range or box."""
        if self.a is not None and self.b is not None:
            return Range(self.a, self.b)
        if self.offsets is None or self.sizes is None:
            raise ValueError("a piece needs a, b or offsets, sizes")
        return Box(self.offsets, self.sizes)


class RngEntry(_Model):
    """The random state `name` (python, numpy, torch, cuda) of a rank: bytes [offset, offset + size) of a file."""

    rank: int
    name: str
    file: int
    offset: int
    size: int


class Manifest(_Model):
    """Everything a restore needs to know, at any world size. `train_state` is the recipe's own JSON."""

    schema_: str = Field(SCHEMA, alias="schema")
    writer: str = WRITER
    team: str
    run: str
    attempt: str
    step: int
    world: int
    at: str
    files: list[FileEntry]
    tensors: list[TensorEntry]
    pieces: list[PieceEntry]
    rng: list[RngEntry] = []
    optimizer_steps: dict[str, int] = {}
    train_state: dict[str, Any] = {}
    job_digest: str | None = None
    data_fingerprint: str | None = None
    plan: dict[str, Any] = {}
    versions: dict[str, str] = {}

    def to_bytes(self) -> bytes:
        """As it is stored: JSON, without the fields that a piece does not use."""
        raw = self.model_dump(mode="json", by_alias=True, exclude={"pieces"})
        raw["pieces"] = [piece.model_dump(mode="json", exclude_none=True) for piece in self.pieces]
        return json.dumps(raw, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str, sha256: str | None = None) -> Manifest:
        """Parse and check a stored manifest; damage raises `CheckpointBroken` naming it."""
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise CheckpointBroken(f"manifest {where} is damaged", why="its sha256 is not the one in the run's log")
        try:
            raw = json.loads(data)
            check_schema(raw["schema"], SCHEMA, where)
            return cls.model_validate(raw)
        except (ValueError, TypeError, KeyError) as error:  # pydantic's errors are ValueErrors
            raise CheckpointBroken(f"manifest {where} is not readable", why=str(error)[:300]) from error

    def piece(self, entry: PieceEntry) -> Piece:
        """The stored entry as a piece."""
        tensor = self.tensors[entry.tensor]
        return Piece(tensor.name, tensor.kind, tensor.shape, entry.index())

    def piece_bytes(self, entry: PieceEntry) -> int:
        """Size of a stored piece in its file."""
        return self.piece(entry).numel * DTYPE_BYTES[self.tensors[entry.tensor].dtype]

    @property
    def eval_loss(self) -> float | None:
        """The held-out loss at this step, where the recipe measured a finite one."""
        loss = self.train_state.get("eval_loss")
        return float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else None

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size for file in self.files)

    def fault(self) -> str | None:
        """None when every tensor's every element is stored exactly once; else what is wrong, in words."""
        by_tensor: list[list[Piece]] = [[] for _ in self.tensors]
        for entry in self.pieces:
            by_tensor[entry.tensor].append(self.piece(entry))
        for tensor, pieces in zip(self.tensors, by_tensor, strict=True):
            fault = cover_fault(tensor.shape, pieces) if prod(tensor.shape) else None
            if fault:
                return f"{tensor.kind} {tensor.name}: {fault}"
        return None
