"""Preparation by real Ray Data from a real S3 server: the same bytes as without Ray, however large the cluster."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from warpbeam.data.dataset import open_dataset
from warpbeam.data.index import FAILED, INDEX, seal_key
from warpbeam.data.order import WINDOW_TASKS
from warpbeam.data.prepare import prepare, start_preparation
from warpbeam.data.reader import BatchReader, batch_ids
from warpbeam.data.sources import cut_tasks
from warpbeam.errors import InfraError, UserError
from warpbeam.job import Code, Job, parse_job
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.connect import open_store
from warpbeam.storage.store import ObjectStore

SUBJECTS = ["warp", "weft", "heddle", "shuttle", "reed", "selvage"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", include_dashboard=False, num_cpus=2, object_store_memory=150_000_000)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def sources(s3: StorageConfig) -> str:
    """A prefix with JSON Lines, Parquet (several row groups) and text."""
    store = open_store(replace(s3, uri=f"{s3.uri}/prepare-sources"))
    for part in range(6):
        lines = [json.dumps({"messages": chat(1000 * part + n)}) for n in range(150)]
        store.put(f"chats/{part}.jsonl", "".join(f"{line}\n" for line in lines).encode())
    texts = [f"Document {n}. The {SUBJECTS[n % 6]} moves, row after row, {n * n} times." for n in range(400)]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": texts, "other": list(range(400))}), buffer, row_group_size=50)
    store.put("texts/all.parquet", buffer.getvalue())
    store.put("notes/readme.txt", ("A long note about looms. " * 3000).encode())
    return store.uri


def chat(number: int) -> list[dict[str, str]]:
    subject = SUBJECTS[number % 6]
    return [
        {"role": "user", "content": f"Question {number}: what is a {subject}?"},
        {"role": "assistant", "content": f"A {subject} is a part of a loom, answer {number}. " * (1 + number % 4)},
    ]


def make_job(team: str, sources: str, **data: Any) -> Job:
    train = [
        {"path": f"{sources}/chats/*.jsonl"},
        {"path": f"{sources}/texts/*.parquet"},
        {"path": f"{sources}/notes", "format": "text"},
    ]
    return parse_job(
        {
            "schema": "warpbeam/job/v1",
            "name": "prepare",
            "team": team,
            "model": {"config": {"model_type": "qwen2"}, "tokenizer": {"train": {"vocab_size": 600}}},
            "data": {"train": train, "seq_len": 128} | data,
            "train": {"method": "sft", "max_steps": 10, "global_batch": 8, "lr": 1e-4, "seed": 5},
        }
    )


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tasks from little data (in the driver, which cuts them)."""
    cut_to(monkeypatch, 16384)


def cut_to(monkeypatch: pytest.MonkeyPatch, task_bytes: int) -> None:
    monkeypatch.setattr("warpbeam.data.settle.cut_tasks", partial(cut_tasks, task_bytes=task_bytes))


def contents(store: ObjectStore, prefix: str) -> dict[str, bytes]:
    return {info.key.removeprefix(prefix): store.get(info.key) for info in store.list(f"{prefix}/")}


@pytest.mark.usefixtures("cluster", "small_tasks")
def test_ray_data_makes_the_rows_that_one_process_makes(s3: StorageConfig, sources: str, tmp_path: Path) -> None:
    """Bit for bit, over JSON Lines, Parquet and text: a read that was dropped or reordered would show."""
    store = open_store(s3)
    seen: list[tuple[int, int, int, int]] = []
    by_ray = prepare(make_job("by-ray", sources), tmp_path, store, s3, progress=lambda *now: seen.append(now))
    inline = prepare(make_job("inline", sources), tmp_path, store, s3, ray=False)
    assert by_ray.fingerprint == inline.fingerprint
    assert by_ray.prefix != inline.prefix
    left, right = contents(store, by_ray.prefix), contents(store, inline.prefix)
    tokenizer = {name.encode() for name in (by_ray.tokenizer, inline.tokenizer)}
    assert len(tokenizer) == 2
    for files, team in ((left, b"by-ray"), (right, b"inline")):
        files["/sources.json"] = files["/sources.json"].replace(team, b"TEAM")
    assert left == right
    assert len(by_ray.index.tasks) > WINDOW_TASKS
    assert seen[-1][:3] == (len(by_ray.index.tasks), len(by_ray.index.tasks), by_ray.index.total_rows)


@pytest.mark.usefixtures("cluster", "small_tasks")
def test_every_record_is_there_once_with_its_own_text(s3: StorageConfig, sources: str, tmp_path: Path) -> None:
    """Ray Data's known fault gave other columns' rows silently: here each row is traced back to its record."""
    store = open_store(s3)
    prepared = prepare(make_job("by-ray", sources), tmp_path, store, s3)
    data = open_dataset(store, prepared.prefix)
    records = []
    for number, task in enumerate(data.sources.tasks):
        if task.source == 2:
            continue
        for row in range(data.index.rows[number]):
            records += data.describe(f"s{task.source}/{number:06d}:{row}")
    chats = [(f"{sources}/chats/{part}.jsonl", line) for part in range(6) for line in range(1, 151)]
    texts = [(f"{sources}/texts/all.parquet", row) for row in range(1, 401)]
    assert sorted(records) == sorted(chats + texts)
    assert data.index.stats.records == len(chats + texts) + data.task_sources.count(2)


@pytest.mark.usefixtures("cluster")
def test_the_second_preparation_is_immediate(s3: StorageConfig, sources: str, tmp_path: Path) -> None:
    store = open_store(s3)
    job = make_job("twice", sources)
    first = prepare(job, tmp_path, store, s3)
    before = [(info.key, info.etag) for info in store.list(first.prefix)]
    start = time.perf_counter()
    assert prepare(job, tmp_path, store, s3) == first
    assert time.perf_counter() - start < 5
    assert [(info.key, info.etag) for info in store.list(first.prefix)] == before


@pytest.mark.usefixtures("cluster", "small_tasks")
def test_training_reads_while_preparation_goes_on(s3: StorageConfig, sources: str, tmp_path: Path) -> None:
    """The batches of a growing data set are those of the complete one."""
    store = open_store(s3)
    preparation = start_preparation(make_job("growing", sources), tmp_path, store, s3)
    data = open_dataset(store, preparation.prefix)
    with BatchReader(data, 5, 8, 0, 1, 8, 1, 0, tmp_path / "cache", end_step=10, wait_deadline_s=60) as reader:
        early = [batch["sample_ids"] for batch in reader]
    prepared = preparation.wait(60)
    assert prepared is not None
    complete = open_dataset(store, prepared.prefix)
    assert early == [batch_ids(complete, step, seed=5, global_batch=8) for step in range(10)]


@pytest.mark.usefixtures("cluster", "small_tasks")
def test_bad_records_stop_a_preparation_by_ray(s3: StorageConfig, tmp_path: Path) -> None:
    store = open_store(s3)
    sources = open_store(replace(s3, uri=f"{s3.uri}/prepare-bad"))
    lines = [json.dumps({"messages": chat(n)}) for n in range(400)]
    long = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a b " * 4000}]
    lines[333] = json.dumps({"messages": long})  # bad, because no whole turn fits: only a worker can tell
    sources.put("a.jsonl", "".join(f"{line}\n" for line in lines).encode())
    job = make_job("bad", sources.uri, train=[{"path": f"{sources.uri}/a.jsonl"}])
    with pytest.raises(UserError, match=r"a\.jsonl:334: over_length"):
        prepare(job, tmp_path, store, s3)
    failed = [info.key for info in store.list("teams/bad/data/") if info.key.endswith(FAILED)]
    assert len(failed) == 1


@pytest.mark.usefixtures("cluster")
def test_a_record_that_kills_its_worker_ends_the_preparation(s3: StorageConfig, sources: str, tmp_path: Path) -> None:
    (tmp_path / "deadly_render.py").write_text("import os\n\ndef render(record, tokenizer):\n    os._exit(7)\n")
    job = make_job("deadly", sources, train=[{"path": f"{sources}/chats/0.jsonl"}])
    job = job.model_copy(update={"code": Code(render="deadly_render:render")})
    with pytest.raises(InfraError, match="Ray could not finish"):
        prepare(job, tmp_path, open_store(s3), s3)


@pytest.mark.usefixtures("cluster")
def test_a_stopped_preparation_begins_no_more_tasks(
    s3: StorageConfig, sources: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_to(monkeypatch, 2048)
    monkeypatch.setattr("warpbeam.data.ray_runner._BYTES_WORTH_A_WORKER", 1)  # a Ray task each, as with much data
    store = open_store(s3)
    begun = threading.Event()
    preparation = start_preparation(make_job("stopped", sources), tmp_path, store, s3, progress=lambda *_: begun.set())
    assert begun.wait(60)
    preparation.cancel()
    sealed = len([info for info in store.list(f"{preparation.prefix}/part-") if info.key.endswith(".json")])
    assert sealed < len(open_dataset(store, preparation.prefix).sources.tasks)


KILLED = """
import sys, time
from pathlib import Path
import warpbeam.data.settle as settle
from warpbeam.data.sources import cut_tasks
settle.cut_tasks = lambda files, **options: cut_tasks(files, task_bytes=16384, **options)
from tests.integration.test_prepare import make_job
from warpbeam.data.order import WINDOW_TASKS
from warpbeam.data.prepare import prepare
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.connect import open_store
import json
config = StorageConfig.from_dict(json.loads(sys.argv[1]))
def progress(done, total, rows, tokens):
    print(done, flush=True)
prepare(make_job("killed", sys.argv[2]), Path(sys.argv[3]), open_store(config), config, ray=False, progress=progress)
"""


@pytest.mark.usefixtures("small_tasks")
def test_a_preparation_killed_in_the_middle_goes_on(s3: StorageConfig, sources: str, tmp_path: Path) -> None:
    store = open_store(s3)
    arguments = [json.dumps(s3.to_dict()), sources, str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE, text=True, cwd=Path.cwd(), env=os.environ
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 7:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    keys = [info.key for info in store.list("teams/killed/data/")]
    assert not [key for key in keys if key.endswith(INDEX)]
    sealed = {key: store.get(key) for key in keys if "/part-" in key and key.endswith(".json")}
    assert 7 <= len(sealed) < WINDOW_TASKS
    prepared = prepare(make_job("killed", sources), tmp_path, store, s3, ray=False)
    assert {key: store.get(key) for key in sealed} == sealed
    whole = prepare(make_job("inline", sources), tmp_path, store, s3, ray=False)
    for task in range(len(prepared.index.tasks)):
        assert store.get(seal_key(prepared.prefix, task)) == store.get(seal_key(whole.prefix, task))
