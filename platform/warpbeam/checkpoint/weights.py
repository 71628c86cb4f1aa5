"""Pretrained weights as a source of pieces: a Hugging Face folder of safetensors, read by byte ranges.

`HfWeights.read` has the same shape as a checkpoint's, so a strategy fills its shards from a base model exactly as it
does on resume, and no rank ever holds the whole of a sharded model. `fetch_model_folder` brings the folder to this
machine, once for all its processes.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.checkpoint.node_cache import fetch_once
from warpbeam.checkpoint.pieces import Piece, overlaps, whole
from warpbeam.checkpoint.safetensors_file import TensorPlace, read_header, torch_dtype
from warpbeam.errors import InfraError, UserError
from warpbeam.storage import open_uri

if TYPE_CHECKING:
    import torch

    from warpbeam.storage import ObjectInfo, ObjectStore, StorageConfig

INDEX = "model.safetensors.index.json"
_WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


class HfWeights:
    """The tensors of a model folder by name, memory-mapped.

    Args:
        folder: holds model.safetensors, or several files and their index.
        base_prefix: the model class's `base_model_prefix`: base models are published with and without it in front.
    """

    def __init__(self, folder: Path, *, base_prefix: str = "") -> None:
        self.folder = folder
        self._base_prefix = base_prefix
        self._maps: dict[Path, mmap.mmap] = {}
        self._places: dict[str, tuple[Path, TensorPlace]] = {}
        for path in _weight_files(folder):
            self._places.update({name: (path, place) for name, place in read_header(path).items()})

    def names(self) -> list[str]:
        """All tensors, by the names they have in the files."""
        return sorted(self._places)

    def find(self, name: str) -> str | None:
        """The stored name of a model's parameter, with or without the base model's prefix; None when absent."""
        prefix = f"{self._base_prefix}."
        for candidate in (name, name.removeprefix(prefix), prefix + name):
            if candidate in self._places:
                return candidate
        return None

    def shape(self, name: str) -> tuple[int, ...]:
        """Global shape of a tensor."""
        return self._place(name)[1].shape

    def dtype(self, name: str) -> torch.dtype:
        """The dtype it is stored in."""
        return torch_dtype(self._place(name)[1].dtype)

    def read(self, piece: Piece) -> torch.Tensor:
        """The asked elements as a new host tensor; floating point as float32, as masters are. `kind` is not looked at.

        Raises:
            UserError: no such tensor, or another shape.
        """
        import torch

        path, place = self._place(piece.name)
        if place.shape != piece.shape:
            raise UserError(
                f"{piece.name!r} has shape {list(place.shape)} in {path.name}, the model needs {list(piece.shape)}",
                why="the weights belong to another configuration",
                fix="take config.json from the same folder as the weights",
                reason="weights_mismatch",
            )
        stored = torch_dtype(place.dtype)
        out = torch.empty(piece.numel, dtype=torch.float32 if stored.is_floating_point else stored)
        if piece.numel:
            source = torch.frombuffer(self._map(path), dtype=torch.uint8)[place.start : place.end].view(stored)
            for asked, held in overlaps(piece, whole(piece.name, piece.kind, place.shape)):
                shown = torch.as_strided(source, held.sizes, held.strides, source.storage_offset() + held.offset)
                torch.as_strided(out, asked.sizes, asked.strides, asked.offset).copy_(shown)
        return out.view(piece.local_shape)

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

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[path]


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = [path.name for path in sorted(folder.glob("*.safetensors"))]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"{folder} lacks {', '.join(missing[:3])}", why=f"{INDEX} names it", fix="copy the whole folder"
        )
    if names:
        return [folder / name for name in names]
    pickled = [path.name for path in sorted(folder.iterdir()) if path.suffix in _PICKLED]
    raise (
        _only_pickled(str(folder), pickled)
        if pickled
        else UserError(
            f"{folder} holds no weights", why="there is no *.safetensors file in it", reason="weights_missing"
        )
    )


def _only_pickled(where: str, files: list[str]) -> UserError:
    return UserError(
        f"{where} has its weights only as {', '.join(files[:3])}",
        why="such a file is a pickle: opening it runs whatever code it carries",
        fix="convert it once where you trust it: `AutoModelForCausalLM.from_pretrained(PATH).save_pretrained(NEW)` "
        "writes safetensors",
        reason="weights_pickled",
    )


def fetch_model_folder(uri: str, config: StorageConfig | None, cache_dir: Path, *, revision: str = "main") -> Path:
    """A local folder with the model's safetensors, config and tokenizer; fetched once per node.

    Args:
        uri: a local path, `s3://bucket/prefix` or `hf://owner/name`.
        config: the pool's storage: its endpoint and credentials serve `s3://`.
        cache_dir: local disk shared by this node's processes.
        revision: branch, tag or commit, for `hf://`.

    Raises:
        UserError: nothing there, or only pickled weights.
        InfraError: the hub cannot be reached.
    """
    if uri.startswith("hf://"):
        return _from_hub(uri.removeprefix("hf://"), revision)
    if uri.startswith("s3://"):
        store, prefix = open_uri(uri, config)
        return fetch_from_store(store, prefix, uri, cache_dir)
    folder = Path(uri.removeprefix("file://")).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"there is no model folder {folder}",
            fix="write a folder with config.json and *.safetensors, s3://BUCKET/PREFIX or hf://OWNER/NAME",
            reason="model_missing",
        )
    return folder


def fetch_from_store(store: ObjectStore, prefix: str, uri: str, cache_dir: Path) -> Path:
    """The same for a model below `prefix` of an open store; `uri` is its name in messages."""
    found = {info.key.removeprefix(f"{prefix}/"): info for info in store.list(f"{prefix}/") if info.size}
    if not found:
        raise UserError(f"there is no model at {uri}", why="no object begins with it", reason="model_missing")
    if "lineage.json" in found and "export.json" not in found:
        raise UserError(
            f"the export at {uri} is unfinished",
            why="it has no export.json, which an export writes last",
            fix="take another version, or export again",
            reason="model_unsealed",
        )
    if not any(name.endswith(".safetensors") for name in found):
        pickled = [name for name in found if name.endswith(_PICKLED)]
        if pickled:
            raise _only_pickled(uri, pickled)
    # The name carries what the objects are now: a model replaced under the same address is fetched anew.
    stamp = "\n".join(f"{name} {info.size} {info.etag}" for name, info in sorted(found.items()))
    name = re.sub(r"[^A-Za-z0-9]+", "-", uri)[-60:] + "-" + hashlib.sha256(f"{uri}\n{stamp}".encode()).hexdigest()[:16]
    return fetch_once(cache_dir, name, lambda temp: _download(store, found, temp))


def _download(store: ObjectStore, found: dict[str, ObjectInfo], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, info in found.items():
        if "/" not in name and not name.endswith(_PICKLED):
            store.download(info.key, folder / name)
    seal = folder / "export.json"
    for name, file in json.loads(seal.read_text())["files"].items() if seal.exists() else ():
        with (folder / name).open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != file["sha256"]:
                raise InfraError(
                    f"{found[name].key} is damaged", why="its sha256 is not the export's", reason="model_damaged"
                )


def _from_hub(name: str, revision: str) -> Path:
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(_WANTED)))
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise InfraError(
            f"hf://{name} is not on this machine, and the hub cannot be reached",
            why=_first_line(error),
            fix="check the network (and HF_HUB_OFFLINE), or copy the model to a folder or a bucket and write that path",
            reason="hub_unreachable",
        ) from error
    except errors.GatedRepoError as error:
        raise UserError(
            f"hf://{name} is gated",
            why=_first_line(error),
            fix="accept its licence on the hub, and give the job a token: secrets: [{env: HF_TOKEN, from: hf-token}]",
            reason="model_gated",
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise UserError(
            f"the hub has no model {name!r} with revision {revision!r} that you may see",
            why=_first_line(error),
            fix="check the name; a private model needs a token: secrets: [{env: HF_TOKEN, from: hf-token}]",
            reason="model_missing",
        ) from error
    except errors.HfHubHTTPError as error:
        raise InfraError(f"the hub failed on hf://{name}", why=_first_line(error), reason="hub_failed") from error
    if not any(folder.glob("*.safetensors")):
        raise _only_pickled(f"hf://{name}", ["other formats than safetensors"])
    return folder


def _first_line(error: Any) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
