from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.unit.data.arrays import PREFIX, dataset, examples
from warpbeam.data.dataset import Waiting, open_dataset
from warpbeam.data.index import INDEX, mark_failed, seal_key
from warpbeam.data.reader import BatchOrder, BatchReader, EvalReader, MicroBatch, batch_ids
from warpbeam.data.write import write_dataset
from warpbeam.errors import PlatformError, UserError
from warpbeam.storage.local import LocalStore

BATCH = 12


def read(folder: Path, cache: Path, steps: int, *, world: int = 1, micro: int = 4, start: int = 0) -> list[MicroBatch]:
    """Micro-batches of all ranks, step by step and rank by rank."""
    accumulation = -(-BATCH // (world * micro))
    per_rank = []
    for rank in range(world):
        data = open_dataset(LocalStore(folder), PREFIX)
        with BatchReader(data, 7, BATCH, rank, world, micro, accumulation, start, cache) as reader:
            per_rank.append(list(islice(reader, steps * accumulation)))
    return [
        batch
        for step in range(steps)
        for rank in per_rank
        for batch in rank[step * accumulation : (step + 1) * accumulation]
    ]


def ids_by_step(batches: list[MicroBatch]) -> dict[int, list[str]]:
    steps: dict[int, list[str]] = {}
    for batch in batches:
        steps.setdefault(batch["step"], []).extend(i for i in batch["sample_ids"] if i != "pad")
    return steps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dataset(tmp_path / "store", [30, 0, 25, 1, 40, 12])
    return tmp_path / "store"


def test_global_batches_are_the_same_at_any_world_and_micro_batch(folder: Path, tmp_path: Path) -> None:
    alone = ids_by_step(read(folder, tmp_path / "cache", 5))
    data = open_dataset(LocalStore(folder), PREFIX)
    assert alone == {step: batch_ids(data, step, seed=7, global_batch=BATCH) for step in range(5)}
    for world, micro in [(2, 3), (3, 4), (4, 3), (5, 1), (8, 2)]:
        assert ids_by_step(read(folder, tmp_path / "cache", 5, world=world, micro=micro)) == alone


def test_resuming_in_the_middle_reads_what_an_uninterrupted_run_reads(folder: Path, tmp_path: Path) -> None:
    whole = read(folder, tmp_path / "cache", 8, world=2, micro=3)
    tail = read(folder, tmp_path / "cache", 3, world=2, micro=3, start=5)
    for left, right in zip(whole[-len(tail) :], tail, strict=True):
        assert left.keys() == right.keys()
        for key in left:
            np.testing.assert_array_equal(left[key], right[key])  # type: ignore[literal-required]


def test_loss_tokens_of_a_global_batch_are_its_labels_over_all_ranks(folder: Path, tmp_path: Path) -> None:
    for world, micro in [(1, 12), (2, 3), (5, 2)]:
        batches = read(folder, tmp_path / "cache", 4, world=world, micro=micro)
        for step in range(4):
            mine = [b for b in batches if b["step"] == step]
            counted = sum(int((b["labels"] != -100).sum()) for b in mine)
            assert {b["global_loss_tokens"] for b in mine} == {counted}
            assert sum(b["last"] for b in mine) == world


def test_padding_rows_weigh_nothing(folder: Path, tmp_path: Path) -> None:
    batches = read(folder, tmp_path / "cache", 1, world=5, micro=3)
    padded = [(b, row) for b in batches for row, i in enumerate(b["sample_ids"]) if i == "pad"]
    assert len(padded) == 15 - BATCH
    for batch, row in padded:
        assert (batch["labels"][row] == -100).all()
        assert (batch["segment_ids"][row] == 0).all()
        np.testing.assert_array_equal(batch["position_ids"][row], np.arange(16))


def test_one_epoch_holds_every_row_once(folder: Path, tmp_path: Path) -> None:
    data = open_dataset(LocalStore(folder), PREFIX)
    rows = data.total_rows
    reader = BatchReader(data, 3, rows, 0, 1, rows, 1, 0, tmp_path / "cache", end_step=2)
    with reader:
        first, second = [batch["sample_ids"] for batch in reader]
    assert len(set(first)) == rows
    assert set(first) == set(second)
    assert first != second


def test_a_batch_may_span_epochs_of_a_tiny_data_set(tmp_path: Path) -> None:
    data = dataset(tmp_path / "store", [1, 1], seq_len=4)
    with BatchReader(data, 0, 10, 0, 1, 10, 1, 0, tmp_path / "cache", end_step=3) as reader:
        for batch in reader:
            assert len(batch["sample_ids"]) == 10
            assert len(set(batch["sample_ids"])) == 2


def test_arrays_are_ready_for_torch(folder: Path, tmp_path: Path) -> None:
    batch = read(folder, tmp_path / "cache", 1)[0]
    for key in ("input_ids", "labels", "position_ids"):
        assert batch[key].dtype == np.int64  # type: ignore[literal-required]
        assert batch[key].flags.writeable  # type: ignore[literal-required]
        assert batch[key].flags.c_contiguous  # type: ignore[literal-required]
    assert batch["segment_ids"].dtype == np.int32


def test_evaluation_reads_all_rows_in_order_with_equal_totals_at_any_world(tmp_path: Path) -> None:
    data = dataset(tmp_path / "store", [9, 0, 14])
    for world, micro in [(1, 4), (2, 4), (3, 5), (7, 1)]:
        ids, counted, sizes, lasts = [], 0, set(), 0
        batches = []
        for rank in range(world):
            with EvalReader(data, rank, world, micro, tmp_path / "cache") as reader:
                got = list(reader)
                assert len(got) == len(reader)
            sizes.add(len(got))
            lasts += sum(b["last"] for b in got)
            counted += sum(int((b["labels"] != -100).sum()) for b in got)
            batches.append(got)
            assert {b["global_loss_tokens"] for b in got} == {data.index.total_loss_tokens}
        ids = [i for step in zip(*batches, strict=True) for b in step for i in b["sample_ids"] if i != "pad"]
        assert len(sizes) == 1
        assert lasts == world
        assert counted == data.index.total_loss_tokens
        assert ids == [f"s0/{task:06d}:{row}" for task, rows in enumerate(data.index.rows) for row in range(rows)]


def growing(tmp_path: Path, *, unsealed: list[int]) -> tuple[LocalStore, dict[str, bytes]]:
    """A data set whose index and some seals have not been written yet, and what is missing."""
    dataset(tmp_path / "store", [20] * 40)
    store = LocalStore(tmp_path / "store")
    keys = [f"{PREFIX}/{INDEX}", *(seal_key(PREFIX, task) for task in unsealed)]
    held = {key: store.get(key) for key in keys}
    for key in keys:
        store.delete(key)
    return store, held


def test_a_growing_data_set_gives_the_same_batches_as_a_complete_one(tmp_path: Path) -> None:
    complete = dataset(tmp_path / "complete", [20] * 40)
    expected = [batch_ids(complete, step, seed=7, global_batch=BATCH) for step in range(60)]
    store, held = growing(tmp_path, unsealed=list(range(40)))
    pending = sorted(held.items(), key=lambda item: item[0].endswith(INDEX))

    def seal_more(_: float) -> None:
        for key, data in pending[:5]:
            store.put(key, data)
        del pending[:5]

    data = open_dataset(store, PREFIX)
    assert not data.complete
    order = BatchOrder(data, seed=7, weights=None, global_batch=BATCH)
    for step in range(60):
        located = order.locate(step, Waiting(pause=seal_more))
        assert data.sample_ids(located.task, located.row) == expected[step]


def test_the_preparation_s_own_error_reaches_the_consumer(tmp_path: Path) -> None:
    store, _ = growing(tmp_path, unsealed=list(range(40)))
    mark_failed(store, PREFIX, UserError("bad.jsonl:3: broken JSON", fix="mend it", reason="bad_records"))
    with (
        BatchReader(open_dataset(store, PREFIX), 7, BATCH, 0, 1, BATCH, 1, 0, tmp_path / "cache") as reader,
        pytest.raises(UserError, match=r"bad\.jsonl:3") as caught,
    ):
        next(reader)
    assert caught.value.reason == "bad_records"


def test_close_ends_a_reader_that_waits(tmp_path: Path) -> None:
    store, _ = growing(tmp_path, unsealed=[0, 1])
    waits: list[str] = []
    reader = BatchReader(
        open_dataset(store, PREFIX), 7, BATCH, 0, 1, BATCH, 1, 0, tmp_path / "cache", on_wait=waits.append
    )
    reader.close()
    with pytest.raises(StopIteration):
        next(reader)


def test_a_part_that_is_not_what_its_seal_says_is_refused(tmp_path: Path) -> None:
    data = dataset(tmp_path / "store", [20])
    store = LocalStore(tmp_path / "store")
    key = f"{PREFIX}/part-000000.bin"
    rotten = bytearray(store.get(key))
    rotten[3] ^= 1
    store.put(key, bytes(rotten))
    with (
        BatchReader(data, 7, BATCH, 0, 1, BATCH, 1, 0, tmp_path / "cache") as reader,
        pytest.raises(PlatformError, match="not the part that its seal describes"),
    ):
        next(reader)


def test_a_rotten_copy_on_the_node_is_fetched_again(tmp_path: Path) -> None:
    data = dataset(tmp_path / "store", [20])
    cache = tmp_path / "cache"
    expected = read(tmp_path / "store", cache, 1)[0]
    (copy,) = cache.glob("*.bin")
    copy.write_bytes(b"\0" * copy.stat().st_size)
    with BatchReader(data, 7, BATCH, 0, 1, 4, 3, 0, cache) as reader:
        np.testing.assert_array_equal(next(reader)["input_ids"], expected["input_ids"])
    assert hashlib.sha256(copy.read_bytes()).hexdigest() == copy.stem


def test_the_cache_keeps_to_its_limit(tmp_path: Path) -> None:
    data = dataset(tmp_path / "store", [50] * 20)
    cache = tmp_path / "cache"
    part_bytes = len(LocalStore(tmp_path / "store").get(f"{PREFIX}/part-000000.bin"))
    limit = 4 * part_bytes
    with BatchReader(data, 7, 200, 0, 1, 200, 1, 0, cache, end_step=3, cache_limit_bytes=limit) as reader:
        ids = [i for batch in reader for i in batch["sample_ids"]]
    assert len(ids) == 600
    assert sum(file.stat().st_size for file in cache.glob("*.bin")) <= limit + part_bytes


def test_weights_mix_sources_in_every_batch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    store = LocalStore(tmp_path / "store")
    tasks = [examples(rng, 60, 16) for _ in range(6)]
    write_dataset(store, PREFIX, tasks, seq_len=16, task_sources=[0, 0, 0, 1, 1, 1], packing=False)
    data = open_dataset(store, PREFIX)
    for step in range(20):
        ids = batch_ids(data, step, seed=1, global_batch=40, weights=[3.0, 1.0])
        assert sum(i.startswith("s0/") for i in ids) in (29, 30, 31)
        assert all(int(i[3:9]) < 3 for i in ids if i.startswith("s0/"))


def test_a_share_that_cannot_hold_the_batch_is_refused(tmp_path: Path) -> None:
    data = dataset(tmp_path / "store", [5])
    with pytest.raises(ValueError, match="do not hold 12"):
        BatchReader(data, 0, 12, 0, 2, 2, 2, 0, tmp_path / "cache")
