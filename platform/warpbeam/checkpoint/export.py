"""From a sharded checkpoint to a model folder that anybody can load: safetensors, config, tokenizer, lineage.

Streamed: pieces are read in order, cast and written to one file of at most 4 GiB at a time, which is uploaded and
removed before the next begins, so neither memory nor disk grows with the model. A version is immutable: `lineage.json`
is created first (whoever creates it owns the version) and `export.json` last (a version without it is unfinished).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from warpbeam.checkpoint.hf_names import FileNames, file_names
from warpbeam.checkpoint.log import Entry, RunLog, live_commits
from warpbeam.checkpoint.manifest import Manifest, TensorEntry
from warpbeam.checkpoint.pieces import whole
from warpbeam.checkpoint.restore import CheckpointReader, find_commit, read_manifest
from warpbeam.checkpoint.retention import best_commit
from warpbeam.checkpoint.safetensors_file import TensorSpec, bytes_of, torch_dtype, write_safetensors
from warpbeam.checkpoint.schema import WRITER
from warpbeam.errors import UserError, WarpbeamError
from warpbeam.storage import layout
from warpbeam.storage.store import ObjectMissing

if TYPE_CHECKING:
    import torch

    from warpbeam.storage.store import ObjectStore

Precision = Literal["fp32", "bf16"]
MAX_FILE_BYTES = 4 * 2**30
LINEAGE, SEAL = "lineage.json", "export.json"
_DTYPES: dict[Precision, tuple[str, str]] = {"fp32": ("F32", "float32"), "bf16": ("BF16", "bfloat16")}


@dataclass(frozen=True)
class ExportedModel:
    """A sealed version in the model store. `prefix` is its key, `uri` its address, `size` in bytes."""

    name: str
    version: str
    prefix: str
    uri: str
    step: int
    size: int
    files: list[str]
    warnings: list[str] = field(default_factory=list)


def export_model(
    store: ObjectStore,
    team: str,
    run: str,
    which: str | int = "last",
    *,
    name: str | None = None,
    version: str | None = None,
    precision: Precision | None = None,
    tmp: Path | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    on_file: Callable[[str, int, int], None] = lambda file, number, of: None,
) -> ExportedModel:
    """Export a committed checkpoint to `teams/<team>/models/<name>/<version>/`.

    The same checkpoint in the same precision is not exported twice in a row: the newest version is returned.

    Args:
        which: "best" (lowest held-out loss; among equals the earlier step), "last", or a step.
        name: the model's; the run's name when None.
        version: the next free integer when None.
        precision: the plan's when None. Float32 masters are rounded to bf16 as the engine rounds them.
        tmp: local disk for one file of at most `max_file_bytes`.

    Raises:
        UserError: no such checkpoint or version taken.
        CheckpointBroken: the checkpoint is damaged.
    """
    commit = choose_commit(RunLog(store, team, run), which)
    manifest = read_manifest(store, commit)
    precision = precision or ("bf16" if manifest.plan.get("precision") == "bf16" else "fp32")
    lineage = _lineage(manifest, commit, precision)
    name = name or run
    if version is None:
        done = _same_export(store, team, name, lineage)
        if done is not None:
            return done
    version = _reserve(store, team, name, version, lineage)
    with tempfile.TemporaryDirectory(prefix="warpbeam-export-", dir=tmp) as folder:
        reader = CheckpointReader(store, manifest, cache_dir=Path(folder), whole_file_bytes=0)
        job = _Export(store, reader, layout.model_prefix(team, name, version), Path(folder), precision, max_file_bytes)
        try:
            return job.carry_out(name, version, layout.run_model_prefix(team, run), on_file)
        except BaseException:
            _give_up(store, layout.model_prefix(team, name, version))
            raise


def _give_up(store: ObjectStore, prefix: str) -> None:
    """Remove what a broken export left; without a seal it is no model, and what stays is only litter."""
    with contextlib.suppress(WarpbeamError):
        for info in list(store.list(f"{prefix}/")):
            store.delete(info.key)


def _lineage(manifest: Manifest, commit: Entry, precision: Precision) -> dict[str, Any]:
    """Where the model comes from, down to the bytes of the checkpoint."""
    return {
        "schema": "warpbeam/lineage/v1",
        "writer": WRITER,
        "team": manifest.team,
        "run": manifest.run,
        "attempt": manifest.attempt,
        "step": manifest.step,
        "manifest": commit.manifest,
        "manifest_sha256": commit.sha256,
        "eval_loss": manifest.eval_loss,
        "precision": precision,
        "data_fingerprint": manifest.data_fingerprint,
        "job_digest": manifest.job_digest,
        "versions": manifest.versions,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def choose_commit(log: RunLog, which: str | int) -> Entry:
    """The commit that "best", "last" or a step names; a UserError says what there is."""
    text = str(which)
    if text == "last":
        return find_commit(log)
    if text.isdigit():
        return find_commit(log, int(text))
    if text != "best":
        raise UserError(f"checkpoint {text!r} is unknown", fix="write best, last or a step", reason="bad_checkpoint")
    find_commit(log)  # no commit at all is another error than none that was evaluated
    best = best_commit(live_commits(log.read()))
    if best is None:
        raise UserError(
            f"run {log.run!r} has no best checkpoint",
            why="none of its checkpoints was evaluated: the job has no `data.eval`",
            fix="use `--checkpoint last`, or a step",
            reason="no_checkpoint",
        )
    return best


def _same_export(store: ObjectStore, team: str, name: str, lineage: dict[str, Any]) -> ExportedModel | None:
    versions = _versions(store, team, name)
    if not versions:
        return None
    prefix = layout.model_prefix(team, name, str(versions[-1]))
    try:
        seal = json.loads(store.get(f"{prefix}/{SEAL}"))
        old = json.loads(store.get(f"{prefix}/{LINEAGE}"))
    except ObjectMissing:
        return None
    if any(old.get(key) != lineage[key] for key in ("run", "manifest_sha256", "precision")):
        return None
    return _exported(store, name, str(versions[-1]), prefix, old["step"], seal)


def _exported(
    store: ObjectStore, name: str, version: str, prefix: str, step: int, seal: dict[str, Any]
) -> ExportedModel:
    size = sum(file["size"] for file in seal["files"].values())
    return ExportedModel(
        name, version, prefix, f"{store.uri}/{prefix}", step, size, sorted(seal["files"]), seal["warnings"]
    )


def _versions(store: ObjectStore, team: str, name: str) -> list[int]:
    found = store.list_dirs(f"{layout.models_prefix(team)}/{layout.check_name(name, 'model')}")
    return sorted(int(version) for version in found if version.isdigit())


def _reserve(store: ObjectStore, team: str, name: str, version: str | None, lineage: dict[str, Any]) -> str:
    """Create the version's lineage.json; whoever creates it owns the version."""
    data = json.dumps(lineage, indent=1).encode()
    if version is not None:
        if store.put_if_absent(f"{layout.model_prefix(team, name, version)}/{LINEAGE}", data):
            return version
        raise UserError(
            f"version {version!r} of model {name!r} exists",
            why="versions are immutable: somebody may serve it",
            fix="leave --version out for the next free number, or write another",
            reason="version_exists",
        )
    number = max(_versions(store, team, name), default=0) + 1
    while not store.put_if_absent(f"{layout.model_prefix(team, name, str(number))}/{LINEAGE}", data):
        number += 1
    return str(number)


def _with_stops(generation: dict[str, Any], folder: Path) -> dict[str, Any]:
    """generation_config.json that names every token to stop at: a base model's own end is often not its template's."""
    from warpbeam.data.tokenizer import load_folder, stop_ids

    if not (folder / "tokenizer_config.json").exists():
        return generation
    tokenizer = load_folder(folder)
    known = generation.get("eos_token_id")
    ends = [known] if isinstance(known, int) else list(known or [])
    ends += [end for end in stop_ids(tokenizer) if end not in ends]
    generation = {key: value for key, value in generation.items() if key != "_from_model_config"}
    if ends:
        generation["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    if generation.get("pad_token_id") is None and tokenizer.pad_token_id is not None:
        generation["pad_token_id"] = tokenizer.pad_token_id
    return generation


@dataclass(frozen=True)
class _OutTensor:
    """A tensor of the exported files: `source` as a whole, or one part of what it converts to."""

    spec: TensorSpec
    source: TensorEntry
    converted: bool


@dataclass
class _Export:
    store: ObjectStore
    reader: CheckpointReader
    prefix: str
    folder: Path
    precision: Precision
    max_file_bytes: int
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    _last: tuple[str, dict[str, torch.Tensor]] = ("", {})

    def carry_out(
        self, name: str, version: str, model_prefix: str, on_file: Callable[[str, int, int], None]
    ) -> ExportedModel:
        self._copy_model_files(model_prefix)
        names = file_names(self.folder) if (self.folder / "config.json").exists() else FileNames()
        warnings = list(names.warnings)
        if not (self.folder / "config.json").exists():
            warnings.append("the run has no config.json: the folder holds tensors that only your own code can load")
        groups = self._group(self._tensors(names))
        weight_map = {}
        for number, group in enumerate(groups, 1):
            file = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
            on_file(file, number, len(groups))
            path = self.folder / file
            tensors = [(out.spec, lambda out=out: self._parts(out, names)) for out in group]
            written = write_safetensors(path, tensors, {})  # type: ignore[arg-type]
            self.store.upload(path, f"{self.prefix}/{file}")
            path.unlink()
            self.files[file] = {"size": written.size, "sha256": written.sha256}
            weight_map.update({out.spec.key: file for out in group})
        if len(groups) > 1:
            total = sum(out.spec.nbytes for group in groups for out in group)
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            self._put("model.safetensors.index.json", json.dumps(index, indent=2).encode())
        seal = {"schema": "warpbeam/export/v1", "writer": WRITER, "files": self.files, "warnings": warnings}
        self.store.put(f"{self.prefix}/{SEAL}", json.dumps(seal, indent=1).encode())
        return _exported(self.store, name, version, self.prefix, self.reader.step, seal)

    def _put(self, file: str, data: bytes) -> None:
        self.store.put(f"{self.prefix}/{file}", data)
        self.files[file] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def _copy_model_files(self, model_prefix: str) -> None:
        """config.json, tokenizer and template as the run wrote them, with what only the export knows put in."""
        found = {info.key.rpartition("/")[2]: info.key for info in self.store.list(model_prefix + "/")}
        for file, key in found.items():
            (self.folder / file).write_bytes(self.store.get(key))
        if "config.json" in found:
            config = json.loads((self.folder / "config.json").read_text())
            config.pop("torch_dtype", None)
            config["dtype"] = _DTYPES[self.precision][1]
            self._write_json("config.json", config)
            path = self.folder / "generation_config.json"
            generation = json.loads(path.read_text()) if path.exists() else {}
            self._write_json("generation_config.json", _with_stops(generation, self.folder))
        for path in sorted(self.folder.iterdir()):
            if path.is_file():
                self._put(path.name, path.read_bytes())

    def _write_json(self, file: str, value: dict[str, Any]) -> None:
        (self.folder / file).write_text(json.dumps(value, indent=2) + "\n")

    def _tensors(self, names: FileNames) -> Iterator[_OutTensor]:
        floats = _DTYPES[self.precision][0]
        for source in self.reader.manifest.tensors:
            if source.kind not in ("weight", "buffer") or source.name in names.tied:
                continue
            is_float = source.kind == "weight" and torch_dtype(source.dtype).is_floating_point
            dtype = floats if is_float else source.dtype
            parts = names.of(source.name, source.shape)
            converted = list(parts.values()) != [source.shape]
            for key, shape in parts.items():
                yield _OutTensor(TensorSpec(key, dtype, shape), source, converted)

    def _group(self, tensors: Iterator[_OutTensor]) -> list[list[_OutTensor]]:
        groups: list[list[_OutTensor]] = [[]]
        size = 0
        for out in tensors:
            if groups[-1] and size + out.spec.nbytes > self.max_file_bytes:
                groups.append([])
                size = 0
            groups[-1].append(out)
            size += out.spec.nbytes
        return groups

    def _parts(self, out: _OutTensor, names: FileNames) -> Iterator[memoryview]:
        dtype = torch_dtype(out.spec.dtype)
        if out.converted:
            yield bytes_of(self._convert(out.source, names)[out.spec.key].to(dtype))
            return
        for piece in self.reader.in_order(out.source):
            yield bytes_of(self.reader.read(piece).to(dtype))

    def _convert(self, source: TensorEntry, names: FileNames) -> dict[str, torch.Tensor]:
        """All file tensors of one source; kept until the next source, since they follow one another."""
        if self._last[0] != source.name:
            tensor = self.reader.read(whole(source.name, source.kind, source.shape)).view(source.shape)
            self._last = (source.name, names.convert({source.name: tensor}))
        return self._last[1]
