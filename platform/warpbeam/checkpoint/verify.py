"""Looking at a run's checkpoints: which there are, and whether every byte of them is still what was committed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from warpbeam.checkpoint.log import Entry, RunLog, live_commits
from warpbeam.checkpoint.manifest import CheckpointBroken, FileEntry
from warpbeam.checkpoint.restore import find_commit, read_manifest
from warpbeam.checkpoint.retention import best_commit
from warpbeam.storage.store import ObjectMissing

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore

_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class CheckpointRow:
    """One committed checkpoint, as a listing shows it. `size` in bytes."""

    step: int
    attempt: str
    at: str
    size: int
    eval_loss: float | None
    newest: bool
    best: bool
    manifest: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Verified:
    """What re-hashing one checkpoint found: the objects that are not what was committed, each with the reason."""

    step: int
    manifest: str
    files: int
    size: int
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every object is there and unchanged."""
        return not self.faults


def list_checkpoints(store: ObjectStore, team: str, run: str) -> list[CheckpointRow]:
    """Committed checkpoints that were not deleted, oldest first. Reads the log only."""
    commits = live_commits(RunLog(store, team, run).read())
    best = best_commit(commits)
    return [
        CheckpointRow(
            step=commit.step or 0,
            attempt=commit.attempt,
            at=commit.at,
            size=int(commit.extra.get("size", 0)),
            eval_loss=commit.extra.get("eval_loss"),
            newest=commit is commits[-1],
            best=commit is best,
            manifest=commit.manifest or "",
        )
        for commit in commits
    ]


def verify(
    store: ObjectStore,
    team: str,
    run: str,
    step: int | None = None,
    *,
    on_file: Callable[[str], None] = lambda key: None,
) -> Verified:
    """Re-hash every file of a checkpoint (the newest without `step`), in bounded memory; says which are bad.

    Raises:
        UserError: there is no such checkpoint.
    """
    commit = find_commit(RunLog(store, team, run), step)
    return verify_commit(store, commit, on_file=on_file)


def verify_commit(store: ObjectStore, commit: Entry, *, on_file: Callable[[str], None] = lambda key: None) -> Verified:
    """The same for one commit entry."""
    key = commit.manifest or ""
    try:
        manifest = read_manifest(store, commit)
    except CheckpointBroken as error:
        return Verified(commit.step or 0, key, 0, 0, [_one_line(error)])

    def check(file: FileEntry) -> str | None:
        on_file(file.key)
        return _fault(store, file)

    with ThreadPoolExecutor(max_workers=4) as pool:
        faults = [fault for fault in pool.map(check, manifest.files) if fault is not None]
    uncovered = manifest.fault()
    if uncovered:
        faults.append(f"{key}: {uncovered}")
    return Verified(manifest.step, key, len(manifest.files), manifest.total_bytes, faults)


def _fault(store: ObjectStore, file: FileEntry) -> str | None:
    digest, size = hashlib.sha256(), 0
    try:
        with store.open_stream(file.key) as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
    except ObjectMissing:
        return f"{file.key} is missing"
    if size != file.size:
        return f"{file.key} has {size} bytes, not {file.size}"
    return None if digest.hexdigest() == file.sha256 else f"{file.key} is damaged: its sha256 is another"


def _one_line(error: CheckpointBroken) -> str:
    return f"{error.what} ({error.why})" if error.why else error.what
