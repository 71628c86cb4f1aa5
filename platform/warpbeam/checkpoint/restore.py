"""Reading a checkpoint: any range or box of any tensor, at any world size, with its bytes verified.

`CheckpointReader.read` finds the stored pieces that overlap the one asked for and puts them together. A stored file of
up to 1 GiB, or one of which this rank needs more than half, is fetched whole into the node's cache, once for all
ranks, and checked against the manifest's sha256; of larger files only the needed bytes are fetched. A missing or
damaged object raises `CheckpointBroken` naming it, and `restore_newest` falls back to the commit before, loudly.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warpbeam.checkpoint.log import Entry, RunLog, live_commits
from warpbeam.checkpoint.manifest import CheckpointBroken, FileEntry, Manifest, PieceEntry, TensorEntry
from warpbeam.checkpoint.node_cache import fetch_once
from warpbeam.checkpoint.pieces import Piece, Range, as_range, overlaps, whole
from warpbeam.checkpoint.safetensors_file import DTYPE_BYTES, torch_dtype
from warpbeam.errors import UserError, WarpbeamError
from warpbeam.storage.store import ObjectMissing

if TYPE_CHECKING:
    import torch

    from warpbeam.storage.store import ObjectStore

WHOLE_FILE_BYTES = 2**30
OnEvent = Callable[[str, dict[str, Any]], None]
"""Called with an event's name and fields, for the run's record."""
AllGather = Callable[[Any], list[Any]]
"""Collective: every rank gives an object and gets all of them in rank order."""
T = TypeVar("T")
logger = logging.getLogger(__name__)


class CheckpointMismatch(UserError):
    """The checkpoint is whole, but of another model: a tensor is missing or has another shape."""

    default_reason = "checkpoint_mismatch"


class CheckpointReader:
    """One committed checkpoint, open for reading. Make one per process; close it (or use `with`) to free the maps."""

    def __init__(
        self, store: ObjectStore, manifest: Manifest, *, cache_dir: Path, whole_file_bytes: int = WHOLE_FILE_BYTES
    ) -> None:
        self.manifest = manifest
        self.state = manifest.train_state
        self._store = store
        self._cache_dir = cache_dir
        self._whole_file_bytes = whole_file_bytes
        self._maps: dict[int, mmap.mmap] = {}
        self._tensors = {(tensor.kind, tensor.name): tensor for tensor in manifest.tensors}
        self._stored: dict[tuple[str, str], list[tuple[Piece, PieceEntry]]] = {}
        for entry in manifest.pieces:
            piece = manifest.piece(entry)
            self._stored.setdefault((piece.kind, piece.name), []).append((piece, entry))

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def step(self) -> int:
        """The optimizer step that the checkpoint holds the state after."""
        return self.manifest.step

    def close(self) -> None:
        """Unmap the fetched files. The cache folder is the caller's to remove."""
        for mapped in self._maps.values():
            with contextlib.suppress(BufferError):  # a tensor made from it still lives; it keeps the map
                mapped.close()
        self._maps.clear()

    def has(self, kind: str, name: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        return (kind, name) in self._tensors

    def read(self, piece: Piece) -> torch.Tensor:
        """The asked elements as a new host tensor: 1-D for a range, box-shaped for a box, in the stored dtype.

        Raises:
            CheckpointMismatch: no such tensor, or another shape.
            CheckpointBroken: an object is missing or damaged, or elements are in no piece.
        """
        import torch

        dtype = torch_dtype(self._known(piece).dtype)
        out = torch.empty(piece.numel, dtype=dtype)
        filled = 0
        for stored, entry in self._stored.get((piece.kind, piece.name), []):
            for asked, held in overlaps(piece, stored):
                source = torch.frombuffer(self._bytes(entry, held.span), dtype=dtype)
                shown = torch.as_strided(source, held.sizes, held.strides)
                torch.as_strided(out, asked.sizes, asked.strides, asked.offset).copy_(shown)
                filled += held.numel
        if filled != piece.numel:
            raise CheckpointBroken(
                f"checkpoint of step {self.step}: {piece.numel - filled} elements of {piece} are in no stored piece"
            )
        return out.view(piece.local_shape)

    def in_order(self, tensor: TensorEntry) -> list[Piece]:
        """The tensor as consecutive pieces that are each one stored piece, for streaming; else as one whole."""
        stored = [piece for piece, _ in self._stored.get((tensor.kind, tensor.name), []) if piece.numel]
        places = {piece: as_range(piece) for piece in stored}
        if None in places.values():
            return [whole(tensor.name, tensor.kind, tensor.shape)]
        return sorted(stored, key=lambda piece: places[piece] or Range(0, 0))

    def rng(self, rank: int) -> dict[str, torch.Tensor] | None:
        """The random states that this rank had; None when there was no such rank."""
        import torch

        states = {}
        for entry in self.manifest.rng:
            if entry.rank == rank:
                data = self._file_bytes(entry.file, entry.offset, entry.size)
                states[entry.name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return states or None

    def fetch(self, pieces: Iterable[Piece]) -> None:
        """Fetch and verify, before anything is changed, the files that `read` of these pieces will need whole.

        Call it on every rank first: then a damaged file is found while all can still turn to an older checkpoint.
        """
        needed: dict[int, int] = {}
        for piece in pieces:
            self._known(piece)
            for stored, entry in self._stored.get((piece.kind, piece.name), []):
                size = sum(held.numel for _, held in overlaps(piece, stored)) * self._itemsize(entry)
                needed[entry.file] = needed.get(entry.file, 0) + size
        for number, size in needed.items():
            file = self.manifest.files[number]
            if size and (file.size <= self._whole_file_bytes or size > file.size / 2):
                self._map(number)

    def _known(self, piece: Piece) -> TensorEntry:
        tensor = self._tensors.get((piece.kind, piece.name))
        if tensor is None:
            raise CheckpointMismatch(
                f"the checkpoint of step {self.step} has no {piece.kind} {piece.name!r}",
                why="it was written by a run with another model or optimizer",
                fix="use another run name, or `--fresh`",
            )
        if tensor.shape != piece.shape:
            raise CheckpointMismatch(
                f"{piece.kind} {piece.name!r} has shape {list(piece.shape)} now, and {list(tensor.shape)} in the "
                f"checkpoint of step {self.step}",
                why="the model was changed",
                fix="use another run name, or `--fresh`",
            )
        return tensor

    def _itemsize(self, entry: PieceEntry) -> int:
        return DTYPE_BYTES[self.manifest.tensors[entry.tensor].dtype]

    def _bytes(self, entry: PieceEntry, span: Range) -> bytearray | memoryview:
        """The bytes of elements [span.a, span.b) of a stored piece."""
        item = self._itemsize(entry)
        data = self._file_bytes(entry.file, entry.offset + span.a * item, (span.b - span.a) * item)
        whole_piece = (span.b - span.a) * item == self.manifest.piece_bytes(entry)
        if entry.file not in self._maps and whole_piece and zlib.crc32(data) != entry.crc32:
            key = self.manifest.files[entry.file].key
            raise CheckpointBroken(f"{key} is damaged", why=f"crc32 of {self.manifest.piece(entry)} does not match")
        return data

    def _file_bytes(self, number: int, start: int, size: int) -> bytearray | memoryview:
        file = self.manifest.files[number]
        if number in self._maps or file.size <= self._whole_file_bytes:
            return memoryview(self._map(number))[start : start + size]
        try:
            data = self._store.get(file.key, start, size)
        except ObjectMissing as error:
            raise _missing(file) from error
        if len(data) != size:
            raise CheckpointBroken(f"{file.key} is cut off", why=f"wanted {size} bytes at {start}, got {len(data)}")
        return bytearray(data)

    def _map(self, number: int) -> mmap.mmap:
        if number not in self._maps:
            file = self.manifest.files[number]
            path = fetch_once(self._cache_dir, file.sha256, lambda temp: fetch_verified(self._store, file, temp))
            with path.open("rb") as opened:
                # Copy-on-write, so that torch takes it as writable memory; nobody writes.
                self._maps[number] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[number]


def fetch_verified(store: ObjectStore, file: FileEntry, path: Path) -> None:
    """Download a checkpoint's file and compare size and sha256; `CheckpointBroken` names what is wrong."""
    try:
        sha256 = store.download(file.key, path, hashed=True)
    except ObjectMissing as error:
        raise _missing(file) from error
    size = path.stat().st_size
    if size != file.size:
        raise CheckpointBroken(f"{file.key} is damaged", why=f"it has {size} bytes, the manifest says {file.size}")
    if sha256 != file.sha256:
        raise CheckpointBroken(f"{file.key} is damaged", why="its sha256 is not the manifest's")


def read_manifest(store: ObjectStore, commit: Entry) -> Manifest:
    """The manifest that a commit entry names, checked against the entry's sha256."""
    if commit.manifest is None:
        raise CheckpointBroken(f"log entry {commit.seq} commits nothing: it names no manifest")
    try:
        data = store.get(commit.manifest)
    except ObjectMissing as error:
        raise CheckpointBroken(f"{commit.manifest} is missing", why="the log commits it") from error
    return Manifest.from_bytes(data, commit.manifest, commit.sha256)


def open_checkpoint(
    store: ObjectStore, team: str, run: str, step: int | None = None, *, cache_dir: Path
) -> CheckpointReader:
    """Open the newest committed checkpoint, or the newest one of `step`. No fall-back: see `restore_newest`.

    Raises:
        UserError: there is no such checkpoint.
        CheckpointBroken: it is damaged.
    """
    commit = find_commit(RunLog(store, team, run), step)
    return _open(store, commit, cache_dir)


def find_commit(log: RunLog, step: int | None = None) -> Entry:
    """The commit entry of the newest checkpoint, or of `step`; a UserError lists what there is."""
    commits = live_commits(log.read())
    matching = [commit for commit in commits if step is None or commit.step == step]
    if matching:
        return matching[-1]
    steps = ", ".join(str(commit.step) for commit in commits[-10:]) or "none"
    wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    raise UserError(
        f"run {log.run!r} of team {log.team!r} has {wanted}",
        why=f"committed steps: {steps}",
        fix=f"`warpbeam checkpoints {log.run}` lists them",
        reason="no_checkpoint",
    )


def restore_newest(
    store: ObjectStore,
    team: str,
    run: str,
    restore: Callable[[CheckpointReader], None],
    *,
    cache_dir: Path,
    rank: int = 0,
    wanted: Iterable[Piece] = (),
    all_gather: AllGather = lambda value: [value],
    on_event: OnEvent = lambda name, fields: None,
) -> CheckpointReader | None:
    """Restore the newest checkpoint that is whole; None when the run has none. Collective: every rank calls it.

    Each candidate is first opened and its files fetched and verified on every rank, and all agree, before `restore`
    changes anything; a broken one makes all ranks turn to the one before, loudly.

    Args:
        restore: puts the state into the engine by `reader.read`.
        wanted: the pieces this rank will read; lets large files be fetched before anything is changed.

    Raises:
        CheckpointBroken: there are commits, but none can be used. Never a silent start from nothing.
    """
    pieces = list(wanted)
    tried: set[str | None] = set()
    broken: CheckpointBroken | None = None
    while True:
        # Rank 0's log decides, so that a commit landing meanwhile cannot make ranks read different checkpoints.
        commits = live_commits(RunLog(store, team, run).read()) if rank == 0 else []
        untried = [commit for commit in commits if commit.manifest not in tried]
        commit: Entry | None = all_gather(untried[-1] if untried else None)[0]
        if commit is None:
            if broken is not None:
                raise broken
            return None
        tried.add(commit.manifest)
        reader, broken = _on_all_ranks(all_gather, partial(_fetched, store, commit, cache_dir, pieces))
        if reader is not None and broken is None:
            _, broken = _on_all_ranks(all_gather, partial(restore, reader))
        if broken is None:
            return reader
        if rank == 0:
            logger.warning("checkpoint of step %s is broken, trying the one before: %s", commit.step, broken)
            on_event("checkpoint_broken", {"step": commit.step, **broken.to_dict()})


def _on_all_ranks(all_gather: AllGather, action: Callable[[], T]) -> tuple[T | None, CheckpointBroken | None]:
    """Do something that may find the checkpoint broken; every rank learns whether any rank did.

    Another error of one rank is raised on all, so that none waits for it.
    """
    result: T | None = None
    error: WarpbeamError | None = None
    try:
        result = action()
    except WarpbeamError as caught:
        error = caught
    errors = [found for found in all_gather(error) if found is not None]
    broken = next((found for found in errors if isinstance(found, CheckpointBroken)), None)
    other = next((found for found in errors if not isinstance(found, CheckpointBroken)), None)
    if other is not None:
        raise other
    return result, broken


def _fetched(store: ObjectStore, commit: Entry, cache_dir: Path, pieces: list[Piece]) -> CheckpointReader:
    reader = _open(store, commit, cache_dir)
    reader.fetch(pieces)
    return reader


def _open(store: ObjectStore, commit: Entry, cache_dir: Path) -> CheckpointReader:
    manifest = read_manifest(store, commit)
    with ThreadPoolExecutor(max_workers=8) as pool:
        heads = list(pool.map(lambda file: store.head(file.key), manifest.files))
    for file, head in zip(manifest.files, heads, strict=True):
        if head is None:
            raise _missing(file)
        if head.size != file.size:
            raise CheckpointBroken(f"{file.key} is damaged", why=f"it has {head.size} bytes, not {file.size}")
    return CheckpointReader(store, manifest, cache_dir=cache_dir)


def _missing(file: FileEntry) -> CheckpointBroken:
    return CheckpointBroken(f"{file.key} is missing", why="the manifest names it; somebody deleted it from the store")
