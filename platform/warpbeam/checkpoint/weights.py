"""Pretrained weights as a source of pieces: a Hugging Face folder of safetensors, read by byte ranges.

`HfWeights.read` has the same shape as a checkpoint's, so a strategy fills its shards from a base model exactly as it
does on resume, and no rank ever holds the whole of a sharded model. `fetch_model_folder` (model_folder.py) brings the
folder to this machine first.
"""

from __future__ import annotations

import json
import mmap
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from warpbeam.checkpoint.hf_names import FileNames, file_names
from warpbeam.checkpoint.model_folder import PICKLED, fetch_from_store, fetch_model_folder, only_pickled
from warpbeam.checkpoint.pieces import Piece, View, overlaps, whole
from warpbeam.checkpoint.safetensors_file import TensorPlace, read_header, torch_dtype
from warpbeam.errors import UserError

if TYPE_CHECKING:
    import torch

__all__ = ["HfWeights", "fetch_from_store", "fetch_model_folder"]

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class HfWeights:
    """The tensors of a model folder by the names that the model's parameters have in memory, memory-mapped.

    Args:
        folder: holds model.safetensors, or several files and their index.
        base_prefix: the model class's `base_model_prefix`: base models are published with and without it in front.
    """

    def __init__(self, folder: Path, *, base_prefix: str = "") -> None:
        self.folder = folder
        self._base_prefix = base_prefix
        self._maps: dict[Path, mmap.mmap] = {}
        self._places: dict[str, tuple[Path, TensorPlace]] = {}
        self._assembled: tuple[str, torch.Tensor] | None = None
        for path in _weight_files(folder):
            self._places.update({name: (path, place) for name, place in read_header(path).items()})

    def names(self) -> list[str]:
        """All tensors, by the names they have in the files."""
        return sorted(self._places)

    def has(self, name: str) -> bool:
        """Whether a model's parameter can be read: stored as it is, under another name, or in parts."""
        return self.find(name) is not None or bool(self._parts(name))

    def find(self, name: str) -> str | None:
        """The name in the files of a parameter that is stored as it is; None when it is not, or in parts."""
        prefix = f"{self._base_prefix}."
        for candidate in (name, name.removeprefix(prefix), prefix + name):
            if candidate in self._places:
                return candidate
        parts = self._parts(name)
        return next(iter(parts)) if len(parts) == 1 else None

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape in the file of a tensor that `find` finds."""
        return self._place(name)[1].shape

    def dtype(self, name: str) -> torch.dtype:
        """The dtype in the file of a tensor that `find` finds."""
        return torch_dtype(self._place(name)[1].dtype)

    def read(self, piece: Piece) -> torch.Tensor:
        """The asked elements as a new host tensor; floating point as float32, as masters are. `kind` is not looked at.

        Raises:
            UserError: no such tensor, or another shape.
        """
        import torch

        if self.find(piece.name) is None and self._parts(piece.name):
            source = self._assemble(piece)
        else:
            path, place = self._place(piece.name)
            if place.shape != piece.shape:
                raise _mismatch(piece, place.shape, path.name)
            source = self._stored(path, place)
        is_float = source.dtype.is_floating_point
        out = torch.empty(piece.numel, dtype=torch.float32 if is_float else source.dtype)
        for asked, held in overlaps(piece, whole(piece.name, piece.kind, piece.shape)):
            _view(out, asked).copy_(_view(source, held))
        return out.view(piece.local_shape)

    @cached_property
    def _file_names(self) -> FileNames:
        return file_names(self.folder) if (self.folder / "config.json").exists() else FileNames()

    def _parts(self, name: str) -> dict[str, tuple[int, ...]]:
        """What transformers stores the parameter as, when the files have all of it under other names; else nothing."""
        if name in self._places:
            return {}
        parts = self._file_names.stored.get(name, {})
        return parts if parts and all(part in self._places for part in parts) else {}

    def _assemble(self, piece: Piece) -> torch.Tensor:
        """A parameter that is stored in parts (fused experts), flat and whole; the last one is kept.

        Transformers says which parts an in-memory tensor is stored as. Asked with a tensor of positions, its parts
        say where each of their elements belongs.
        """
        import torch

        if self._assembled is None or self._assembled[0] != piece.name:
            positions = torch.arange(_numel(piece.shape)).view(piece.shape)
            flat: torch.Tensor | None = None
            for part, where in self._file_names.convert({piece.name: positions}).items():
                path, place = self._places[part]
                if place.shape != tuple(where.shape):
                    raise _mismatch(piece, place.shape, path.name)
                stored = self._stored(path, place)
                flat = torch.empty(positions.numel(), dtype=stored.dtype) if flat is None else flat
                flat[where.reshape(-1)] = stored
            assert flat is not None
            self._assembled = (piece.name, flat)
        if self._assembled[1].numel() != _numel(piece.shape):
            raise _mismatch(piece, (self._assembled[1].numel(),), "the files")
        return self._assembled[1]

    def _place(self, name: str) -> tuple[Path, TensorPlace]:
        stored = self.find(name)
        if stored is None:
            raise UserError(
                f"{self.folder} has no weights for {name!r}",
                why=f"it has {len(self._places)} tensors, for example {', '.join(self.names()[:3])}",
                fix="check that config.json and the weights are of the same model",
                reason="weights_missing",
            )
        return self._places[stored]

    def _stored(self, path: Path, place: TensorPlace) -> torch.Tensor:
        """A stored tensor, flat, mapped and not copied."""
        import torch

        dtype = torch_dtype(place.dtype)
        if place.start == place.end:
            return torch.empty(0, dtype=dtype)
        if path not in self._maps:
            with path.open("rb") as file:
                # Copy-on-write, so that torch takes it as writable memory; nobody writes.
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        data = torch.frombuffer(self._maps[path], dtype=torch.uint8)[place.start : place.end]
        # Our own writer aligns; files of others may begin anywhere.
        return (data if place.start % dtype.itemsize == 0 else data.clone()).view(dtype)


def _view(flat: torch.Tensor, view: View) -> torch.Tensor:
    import torch

    return torch.as_strided(flat, view.sizes, view.strides, flat.storage_offset() + view.offset)


def _numel(shape: tuple[int, ...]) -> int:
    return whole("", "weight", shape).numel


def _mismatch(piece: Piece, found: tuple[int, ...], where: str) -> UserError:
    return UserError(
        f"{piece.name!r} has shape {list(found)} in {where}, the model needs {list(piece.shape)}",
        why="the weights belong to another configuration",
        fix="take config.json from the same folder as the weights",
        reason="weights_mismatch",
    )


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    elif (folder / WEIGHTS).exists():
        names = [WEIGHTS]  # others beside it are adapters, or the same weights in another layout
    else:
        names = [path.name for path in sorted(folder.glob("*.safetensors"))]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} lacks {', '.join(missing[:3])}", why=f"{INDEX} names it", fix="copy the whole folder"
        )
    if names:
        return [folder / name for name in names]
    pickled = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLED]
    if pickled:
        raise only_pickled(str(folder), pickled)
    raise UserError(f"{folder} holds no weights", why="there is no *.safetensors file in it", reason="weights_missing")
