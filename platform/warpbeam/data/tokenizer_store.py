"""The job's tokenizer in the store: loaded or trained once, then the same files for every worker, rank and export.

A tokenizer's prefix is named by what it is (a loaded one) or by what it was trained from; `complete.json` comes last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpbeam.data.index import read_or_none
from warpbeam.data.sample import SAMPLE_CHARS, sample_texts
from warpbeam.data.settle import SettledSource, source_identity
from warpbeam.data.sources import Task
from warpbeam.data.tokenizer import digest, load_tokenizer, read_template, save_tokenizer, train_tokenizer
from warpbeam.errors import UserError
from warpbeam.job import Job, TrainTokenizer
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.disk import disk_errors
from warpbeam.storage.embedded import home
from warpbeam.storage.layout import team_prefix
from warpbeam.storage.store import ObjectStore

log = logging.getLogger(__name__)

COMPLETE = "complete.json"
_TRAINER_VERSION = 1
_NAME_CHARS = 32


@dataclass(frozen=True)
class StoredTokenizer:
    """Where a job's tokenizer is, and what names it in a fingerprint."""

    prefix: str
    digest: str
    notes: tuple[str, ...] = ()
    """What a person should know about it."""


def store_loaded(job: Job, root: Path, store: ObjectStore, config: StorageConfig) -> StoredTokenizer:
    """Load the tokenizer that the job names and put it into the store, unless it is there."""
    notes: list[str] = []
    tokenizer = load_tokenizer(job.model, root, config, notes=notes)
    name = digest(tokenizer)
    prefix = _prefix(job.team, name)
    if read_or_none(store, f"{prefix}/{COMPLETE}") is None:
        _publish(store, prefix, tokenizer)
    return StoredTokenizer(prefix, name, tuple(notes))


def store_trained(
    job: Job,
    root: Path,
    store: ObjectStore,
    config: StorageConfig,
    tasks: Sequence[Task],
    sources: Sequence[SettledSource],
) -> StoredTokenizer:
    """Train the job's tokenizer on its training data and put it into the store, unless that was done before.

    Args:
        tasks: of the training sources, in order.
    """
    wanted = job.model.tokenizer
    assert isinstance(wanted, TrainTokenizer)
    template = read_template(job.model.chat_template, root) if job.model.chat_template else None
    settings: dict[str, Any] = {
        "trainer": _TRAINER_VERSION,
        "vocab_size": wanted.train.vocab_size,
        "sample_chars": SAMPLE_CHARS,
        "method": job.train.method,
        "seq_len": job.data.seq_len,
        "template": template,
        "render": job.code.render is not None,
        "sources": [source_identity(source, root) for source in sources],
    }
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    prefix = _prefix(job.team, name)
    if read_or_none(store, f"{prefix}/{COMPLETE}") is None:
        texts = sample_texts(tasks, sources, config, all_fields=job.code.render is not None)
        tokenizer = train_tokenizer(
            texts,
            wanted.train.vocab_size,
            method=job.train.method,
            chat_template=template,
            seq_len=job.data.seq_len,
        )
        _publish(store, prefix, tokenizer)
    return StoredTokenizer(prefix, name)


def fetch_tokenizer(store: ObjectStore, prefix: str) -> Path:
    """A tokenizer's folder on this machine, fetched once."""
    folder = home() / "cache" / "tokenizers" / prefix.rpartition("/")[2]
    if folder.is_dir():
        return folder
    listed = read_or_none(store, f"{prefix}/{COMPLETE}")
    if listed is None:
        raise UserError(
            f"there is no tokenizer under {store.uri}/{prefix}",
            fix="prepare the data again: warpbeam data prepare JOB",
            reason="missing_tokenizer",
        )
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        arriving = Path(tempfile.mkdtemp(prefix=".arriving-", dir=folder.parent))
        (arriving / COMPLETE).write_bytes(listed)
        for name in json.loads(listed)["files"]:
            store.download(f"{prefix}/{name}", arriving / name)
        try:
            arriving.rename(folder)
        except OSError:  # another process of this machine was faster
            shutil.rmtree(arriving)
            if not folder.is_dir():
                raise
    return folder


def load_stored_tokenizer(store: ObjectStore, prefix: str, *, trust_remote_code: bool = False) -> Any:
    """The fast Hugging Face tokenizer that was stored.

    Made straight from its files where that gives the same tokenizer: AutoTokenizer imports torch, which costs every
    worker seconds. The digest decides.
    """
    from transformers import PreTrainedTokenizerFast

    folder = fetch_tokenizer(store, prefix)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        if digest(tokenizer) == json.loads((folder / COMPLETE).read_bytes())["digest"]:
            return tokenizer
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        log.info("%s needs its own tokenizer class: %s", prefix, error)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)


def _publish(store: ObjectStore, prefix: str, tokenizer: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="warpbeam-tokenizer-") as folder:
        save_tokenizer(tokenizer, Path(folder))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        names = [str(path.relative_to(folder)) for path in files]
        for path, name in zip(files, names, strict=True):
            store.upload(path, f"{prefix}/{name}")
        complete = {"schema": "warpbeam/tokenizer/v1", "files": names, "digest": digest(tokenizer)}
        store.put_if_absent(f"{prefix}/{COMPLETE}", json.dumps(complete).encode())


def _prefix(team: str, name: str) -> str:
    return f"{team_prefix(team)}/data/tokenizers/{name[:_NAME_CHARS]}"
