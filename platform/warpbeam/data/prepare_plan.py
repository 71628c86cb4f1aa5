"""What a preparation will do, decided before anything is read: sources, tokenizer, fingerprint, tasks and their order.

The fingerprint names everything that decides a byte of a part, and nothing else: weights and seed belong to the order,
so changing them prepares nothing anew; who prepares, with how many workers, is not in it either.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from warpbeam.data.encoder import OverLength
from warpbeam.data.glance import refuse_bad_records
from warpbeam.data.index import INDEX, VERSION, Source, Sources, TaskRange
from warpbeam.data.order import preparation_order
from warpbeam.data.render_hook import RenderHook
from warpbeam.data.settle import SettledSource, settle_sources, settle_tasks, source_identity
from warpbeam.data.sources import TASK_BYTES, Task
from warpbeam.data.tokenizer_store import StoredTokenizer, store_loaded, store_trained
from warpbeam.data.write import STRETCH_TOKENS
from warpbeam.errors import UserError
from warpbeam.job import Job, TrainTokenizer
from warpbeam.job_checks import WITHOUT_TURNS
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.layout import data_prefix
from warpbeam.storage.store import ObjectStore

Split = Literal["train", "eval"]


@dataclass(frozen=True)
class RecordRule:
    """How one source's records are read."""

    format: str
    fields: dict[str, str]


@dataclass(frozen=True)
class TaskSpec:
    """What a worker needs beside its task: plain values, no secrets, nothing heavy."""

    storage: StorageConfig
    prefix: str
    tokenizer: str
    """Prefix of the tokenizer's files."""
    trust_remote_code: bool
    seq_len: int
    packing: bool
    method: Literal["sft", "pretrain"]
    over_length: OverLength | None
    on_bad_record: Literal["fail", "skip"]
    render: RenderHook | None
    rules: tuple[RecordRule, ...]
    """By source."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TaskSpec:
        value = json.loads(text)
        value["storage"] = StorageConfig.from_dict(value["storage"])
        value["render"] = RenderHook(**value["render"]) if value["render"] else None
        value["rules"] = tuple(RecordRule(**rule) for rule in value["rules"])
        return cls(**value)


@dataclass(frozen=True)
class PreparationPlan:
    """A preparation, ready to run."""

    spec: TaskSpec
    sources: Sources
    tasks: tuple[Task, ...]
    order: tuple[int, ...]
    """Task numbers, in the order in which training will need their windows."""
    notes: tuple[str, ...]
    """What a person should know: files passed over, what the tokenizer lacks."""

    @property
    def prefix(self) -> str:
        return self.spec.prefix

    @property
    def fingerprint(self) -> str:
        return self.sources.fingerprint


def plan_preparation(
    job: Job, root: Path, store: ObjectStore, config: StorageConfig, *, split: Split = "train"
) -> PreparationPlan:
    """Settle what is to be prepared; trains the tokenizer where the job asks for its own.

    Args:
        root: relative paths start here (the job file's folder).
        config: of `store`, and how sources on S3 are reached.
        split: which of the job's two data lists.
    """
    render = RenderHook(job.code.render, str(root), os.getcwd()) if job.code.render else None
    asked = job.data.train if split == "train" else job.data.eval
    settled = settle_sources(asked, root, config, rendered=render is not None)
    if render is None:
        _check_formats(job, settled)
    tasks = settle_tasks(settled, config)
    tokenizer = _settle_tokenizer(job, root, store, config, split, settled, tasks)
    fingerprint = _fingerprint(job, root, settled, tokenizer, render)
    spec = TaskSpec(
        storage=config,
        prefix=data_prefix(job.team, fingerprint),
        tokenizer=tokenizer.prefix,
        trust_remote_code=job.model.trust_remote_code,
        seq_len=job.data.seq_len,
        packing=job.data.packing,
        method=job.train.method,
        over_length=job.data.over_length,
        on_bad_record=job.data.on_bad_record,
        render=render,
        rules=tuple(RecordRule(source.format, dict(source.fields)) for source in settled),
    )
    if render is None and job.data.on_bad_record == "fail" and store.head(f"{spec.prefix}/{INDEX}") is None:
        refuse_bad_records(tasks, settled, config)
    order = tuple(range(len(tasks)))
    if split == "train":
        weights = [source.weight for source in asked]
        sizes = [task.end - task.start for task in tasks]
        order = tuple(preparation_order([task.source for task in tasks], sizes, seed=job.train.seed, weights=weights))
    notes = tuple(source.note for source in settled if source.note) + tokenizer.notes
    sources = Sources(fingerprint, job.data.seq_len, tokenizer.prefix, *_listed(settled, tasks))
    return PreparationPlan(spec, sources, tuple(tasks), order, notes)


def _check_formats(job: Job, settled: list[SettledSource]) -> None:
    """What a job file's own check cannot see where its format is `auto`."""
    for source in settled:
        if job.train.method == "pretrain" and source.format not in WITHOUT_TURNS:
            raise UserError(
                f"{source.path} holds records of format {source.format}, but method pretrain reads text or tokens",
                why="pretrain puts loss on every token; a conversation carries loss on the assistant's turns only",
                fix="write `method: sft`, or `format: text` with `fields: {text: YOUR_FIELD}`",
                reason="format_not_for_method",
            )
        if source.format == "tokens" and isinstance(job.model.tokenizer, TrainTokenizer):
            raise UserError(
                f"{source.path} holds ready token ids, but model.tokenizer is to be trained",
                why="the ids mean something in the tokenizer that made them, and in no other",
                fix="name that one: `tokenizer: PATH` (hf://, s3:// or a folder) under model:",
                reason="tokens_need_their_tokenizer",
            )


def _settle_tokenizer(
    job: Job,
    root: Path,
    store: ObjectStore,
    config: StorageConfig,
    split: Split,
    settled: list[SettledSource],
    tasks: list[Task],
) -> StoredTokenizer:
    if not isinstance(job.model.tokenizer, TrainTokenizer):
        return store_loaded(job, root, store, config)
    if split == "eval":  # a tokenizer is trained on the training data only
        settled = settle_sources(job.data.train, root, config, rendered=job.code.render is not None)
        tasks = settle_tasks(settled, config)
    return store_trained(job, root, store, config, tasks, settled)


def _fingerprint(
    job: Job, root: Path, settled: list[SettledSource], tokenizer: StoredTokenizer, render: RenderHook | None
) -> str:
    decides: dict[str, Any] = {
        "version": VERSION,
        "sources": [source_identity(source, root) for source in settled],
        "seq_len": job.data.seq_len,
        "packing": job.data.packing,
        "over_length": job.data.over_length,
        "method": job.train.method,
        "on_bad_record": job.data.on_bad_record,
        "tokenizer": tokenizer.digest,
        "render": render.digest() if render else None,
        "task_bytes": TASK_BYTES,
        "stretch_tokens": STRETCH_TOKENS,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]


def _listed(settled: list[SettledSource], tasks: list[Task]) -> tuple[tuple[Source, ...], tuple[TaskRange, ...]]:
    number = {(s, file.uri): at for s, source in enumerate(settled) for at, file in enumerate(source.files)}
    ranges = tuple(TaskRange(t.source, number[t.source, t.file.uri], t.start, t.end) for t in tasks)
    return tuple(Source(source.path, source.format, source.files) for source in settled), ranges
