"""The safetensors format as a stream: files larger than memory are written tensor by tensor and read by byte ranges.

The library of that name wants all tensors at once to write a file. The format is small: 8 bytes with the header's
length, a JSON header with each tensor's dtype, shape and place, then the tensors without gaps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from warpbeam.errors import UserError
from warpbeam.storage.disk import disk_errors

if TYPE_CHECKING:
    import torch

DTYPE_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_MAX_HEADER_BYTES = 100_000_000


class TensorSpec(NamedTuple):
    """What the header says about a tensor. `dtype` is the format's name, such as F32."""

    key: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


class TensorPlace(NamedTuple):
    """A tensor in a file: bytes [start, end), absolute."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class WrittenFile(NamedTuple):
    """A finished file; `offsets` are absolute, in the order in which the tensors were given."""

    size: int
    sha256: str
    offsets: list[int]


def write_safetensors(
    path: Path, tensors: Sequence[tuple[TensorSpec, Callable[[], Iterable[memoryview]]]], metadata: dict[str, str]
) -> WrittenFile:
    """Write a new file; each tensor's bytes are asked for when its turn comes, in as many parts as it likes.

    The order in the file is by size of dtype, largest first, so that every tensor is aligned to its dtype.

    Raises:
        InfraError: the disk is full (reason `disk_full`); the half-written file is removed.
    """
    order = sorted(range(len(tensors)), key=lambda number: -DTYPE_BYTES[tensors[number][0].dtype])
    header = _header([tensors[number][0] for number in order], metadata)
    digest = hashlib.sha256(header)
    offsets = [0] * len(tensors)
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # One block is hashed while it is written: both are about as fast, and both let other threads run.
            with path.open("wb") as file, ThreadPoolExecutor(1) as hasher:
                file.write(header)
                at = len(header)
                for number in order:
                    spec, produce = tensors[number]
                    offsets[number] = at
                    for data in produce():
                        hashed = hasher.submit(digest.update, data)
                        file.write(data)
                        hashed.result()
                        at += len(data)
                        del data  # or it would keep this tensor alive while the next one is made
                    if at - offsets[number] != spec.nbytes:
                        raise ValueError(f"{spec.key}: {at - offsets[number]} bytes came, {spec.nbytes} were announced")
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return WrittenFile(at, digest.hexdigest(), offsets)


def _header(specs: list[TensorSpec], metadata: dict[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    start = 0
    for spec in specs:
        if spec.key in entries:
            raise ValueError(f"{spec.key} is in the file twice")
        end = start + spec.nbytes
        entries[spec.key] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_header(path: Path) -> dict[str, TensorPlace]:
    """The tensors of a file by name; a UserError when it is not a whole safetensors file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
                raise ValueError(f"header of {length} bytes in a file of {size}")
            raw = json.loads(file.read(length))
            raw.pop("__metadata__", None)
            base = 8 + length
            places = {
                key: TensorPlace(entry["dtype"], tuple(entry["shape"]), *(base + at for at in entry["data_offsets"]))
                for key, entry in raw.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not a safetensors file", why=str(error), reason="bad_safetensors") from error
    if max((place.end for place in places.values()), default=base) > size:
        raise UserError(
            f"{path} is cut off", why=f"it has {size} bytes", fix="fetch it again", reason="bad_safetensors"
        )
    return places


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A host tensor's elements in row-major order, without a copy where it is contiguous."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")


def dtype_name(dtype: torch.dtype) -> str:
    """The format's name of a torch dtype."""
    return _names()[dtype]


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of the format's name."""
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
