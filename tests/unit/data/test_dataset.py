from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.unit.data.arrays import PREFIX, dataset
from warpbeam.data.dataset import Waiting, open_dataset, parse_sample_id
from warpbeam.data.examples import Example
from warpbeam.data.files import SourceFile
from warpbeam.data.index import (
    INDEX,
    SOURCES,
    Seal,
    Source,
    Sources,
    TaskRange,
    mark_failed,
    part_key,
    seal_key,
)
from warpbeam.data.part_cache import PartCache
from warpbeam.data.stats import TaskStats
from warpbeam.data.write import build_part, part_file, store_part, write_index
from warpbeam.errors import InfraError, UserError
from warpbeam.storage.local import LocalStore


def test_counts_of_a_complete_data_set(tmp_path: Path) -> None:
    data = dataset(tmp_path, [5, 0, 9])
    assert data.complete
    assert data.total_rows == sum(data.index.rows)
    assert data.index.rows[1] == 0
    assert data.index.stats.records == 14
    for task in range(3):
        assert data.info(task).rows == data.index.rows[task]
        assert int(data.info(task).loss_tokens.sum()) == data.index.tasks[task].loss_tokens


def test_total_steps_round_up_and_may_be_part_of_an_epoch(tmp_path: Path) -> None:
    data = dataset(tmp_path, [40], seq_len=4)
    rows = data.total_rows
    assert data.total_steps(1, rows) == 1
    assert data.total_steps(1, rows - 1) == 2
    assert data.total_steps(0.5, 1) == -(-rows // 2)
    assert data.total_steps(3, 2) == -(-3 * rows // 2)


def test_opening_what_was_not_prepared_says_how_to(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no prepared data") as caught:
        open_dataset(LocalStore(tmp_path), PREFIX)
    assert "data prepare" in caught.value.fix


def test_waiting_ends_when_the_tasks_are_sealed(tmp_path: Path) -> None:
    dataset(tmp_path, [3, 4, 5])
    store = LocalStore(tmp_path)
    seals = {task: store.get(seal_key(PREFIX, task)) for task in (1, 2)}
    for key in (f"{PREFIX}/{INDEX}", seal_key(PREFIX, 1), seal_key(PREFIX, 2)):
        store.delete(key)
    data = open_dataset(store, PREFIX)
    pauses: list[float] = []
    sentences: list[str] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) in (3, 6):
            task = len(pauses) // 3
            store.put(seal_key(PREFIX, task), seals[task])

    rows = data.wait_sealed([0, 1, 2], Waiting(pause=pause, on_wait=sentences.append))
    assert rows == [data.info(task).rows for task in range(3)]
    assert len(sentences) == len(pauses) == 6
    assert pauses[0] < pauses[1] < pauses[2]
    assert pauses[3] == pauses[0]  # something new was sealed
    assert not data.complete


def test_waiting_gives_up_when_nothing_happens(tmp_path: Path) -> None:
    dataset(tmp_path, [3, 4])
    store = LocalStore(tmp_path)
    for key in (f"{PREFIX}/{INDEX}", seal_key(PREFIX, 1)):
        store.delete(key)
    waited: list[float] = []
    with pytest.raises(InfraError, match="nothing new was prepared"):
        open_dataset(store, PREFIX).wait_sealed([1], Waiting(pause=waited.append, deadline_s=60))
    assert 60 <= sum(waited) < 70


def test_waiting_for_the_index(tmp_path: Path) -> None:
    expected = dataset(tmp_path, [3, 4]).index
    store = LocalStore(tmp_path)
    held = store.get(f"{PREFIX}/{INDEX}")
    store.delete(f"{PREFIX}/{INDEX}")
    data = open_dataset(store, PREFIX)
    with pytest.raises(UserError, match="still being prepared"):
        _ = data.index
    assert data.wait_complete(Waiting(pause=lambda _: store.put(f"{PREFIX}/{INDEX}", held))) == expected
    store.delete(f"{PREFIX}/{INDEX}")
    mark_failed(store, PREFIX, UserError("7 of 20 records are bad"))
    with pytest.raises(UserError, match="7 of 20"):
        open_dataset(store, PREFIX).wait_complete(Waiting(pause=lambda _: None))


def test_rows_are_read_and_counted_in_any_order(tmp_path: Path) -> None:
    data = dataset(tmp_path, [9, 7], seq_len=8)
    cache = PartCache(data.store, tmp_path / "cache")
    parts = [np.frombuffer(data.store.get(part_key(PREFIX, t)), np.uint8).reshape(-1, 40) for t in (0, 1)]
    tasks, rows = np.array([1, 0, 1, 0, 1]), np.array([2, 0, 0, 3, 2])
    block = data.read_rows(tasks, rows, cache)
    for got, task, row in zip(block, tasks, rows, strict=True):
        np.testing.assert_array_equal(got, parts[task][row])
    each = [int(data.info(t).loss_tokens[r]) for t, r in zip(tasks, rows, strict=True)]
    assert data.loss_tokens(tasks, rows) == sum(each)
    assert data.sample_ids(tasks, rows) == [
        "s0/000001:2", "s0/000000:0", "s0/000001:0", "s0/000000:3", "s0/000001:2"
    ]  # fmt: skip


def test_a_row_names_its_records_by_file_and_line(tmp_path: Path) -> None:
    """Lines are counted within a task; the index says how many came before in the same file."""
    files = tuple(SourceFile(f"/data/{name}.jsonl", 100, "", None, "jsonl") for name in "ab")
    tasks = (TaskRange(0, 0, 0, 100), TaskRange(0, 1, 0, 50), TaskRange(0, 1, 50, 100))
    sources = Sources("f", 8, None, (Source("*.jsonl", "text", files),), tasks)
    store = LocalStore(tmp_path / "store")
    store.put(f"{PREFIX}/{SOURCES}", sources.to_json())
    lines = {6: 1, 2: 3, 8: 4}
    examples = [Example(np.full(n, 7, np.int32), np.ones(n, np.bool_), line) for n, line in lines.items()]
    seals = [seal_by_hand(store, task, examples, TaskStats(lines=10 + task)) for task in range(3)]
    write_index(store, PREFIX, sources, [(seal.totals, seal.stats) for seal in seals])
    data = open_dataset(store, PREFIX)
    assert data.describe("s0/000000:0") == [("/data/a.jsonl", 1), ("/data/a.jsonl", 3)]
    assert data.describe("s0/000001:1") == [("/data/b.jsonl", 4)]
    assert data.describe("s0/000002:1") == [("/data/b.jsonl", 11 + 4)]
    assert data.describe("pad") == []


def test_sample_ids_are_checked() -> None:
    assert parse_sample_id("s2/000012:34") == (12, 34)
    for wrong in ("s2/000012", "12:x", "", "pad"):
        with pytest.raises(UserError, match="not a sample id"):
            parse_sample_id(wrong)


def test_a_part_that_somebody_else_sealed_first_stays(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    example = Example(np.array([1, 2, 3], np.int32), np.ones(3, np.bool_), 1)
    first = seal_by_hand(store, 0, [example], TaskStats(records=1))
    assert seal_by_hand(store, 0, [example], TaskStats(records=99)) == first


def seal_by_hand(store: LocalStore, task: int, examples: list[Example], stats: TaskStats) -> Seal:
    with part_file() as (file, path):
        built = build_part(examples, file, seq_len=8, packing=True)
        return store_part(store, PREFIX, task, path, built, stats)


def test_a_long_task_is_packed_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded, and every example is still there once."""
    monkeypatch.setattr("warpbeam.data.write.STRETCH_TOKENS", 20)
    examples = [Example(np.full(n, n, np.int32), np.ones(n, np.bool_), n) for n in (5, 3, 8, 7, 1, 6, 2, 4)]
    with part_file() as (file, path):
        built = build_part(iter(examples), file, seq_len=8, packing=True)
        data = path.read_bytes()
    assert sorted(line for row in built.records for line in row) == list(range(1, 9))
    assert hashlib.sha256(data).hexdigest() == built.sha256
    tokens = np.frombuffer(data, np.uint8).reshape(-1, 40)[:, :32].copy().view("<u4")
    assert np.bincount(tokens.reshape(-1))[1:].tolist() == list(range(1, 9))
