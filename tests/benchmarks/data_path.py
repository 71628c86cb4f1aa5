"""How fast the data path is without a model: `python -m tests.benchmarks.data_path`.

Packing and encoding a part, reading micro-batches (one reader, parts on this disk), and finding a place in an index of
1e8 rows at step 10 and at step 10 million. One process; pin it (`taskset -c 0`) for the number of one core.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from warpbeam.data.dataset import open_dataset
from warpbeam.data.order import RowOrder
from warpbeam.data.pack import pack
from warpbeam.data.part import encode_part
from warpbeam.data.reader import BatchReader
from warpbeam.data.write import write_dataset
from warpbeam.storage.local import LocalStore

REPEATS = 10


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median_line(name: str, values: list[float], unit: str) -> None:
    low, *_, high = sorted(values)
    print(f"{name:<44} {statistics.median(values):>12,.1f} {unit}   ({low:,.1f} to {high:,.1f}, n={len(values)})")


def bench_packing() -> None:
    rng = np.random.default_rng(0)
    for seq_len in (256, 2048, 32768):
        lengths = rng.integers(1, min(seq_len, 1500), 50_000).tolist()
        rates = [len(lengths) / seconds(lambda n=lengths, s=seq_len: pack(n, s)) / 1e3 for _ in range(REPEATS)]
        median_line(f"pack, seq_len {seq_len}", rates, "k examples/s")
    examples = [(np.arange(n), np.ones(n, np.bool_)) for n in rng.integers(1, 256, 20_000).tolist()]
    rows = pack([len(ids) for ids, _ in examples], 256)
    rates = [len(examples) / seconds(lambda: encode_part(examples, rows, 256)) / 1e3 for _ in range(REPEATS)]
    median_line("encode a part, seq_len 256", rates, "k examples/s")


def bench_reader(seq_len: int, global_batch: int, micro_batch: int, folder: Path) -> None:
    rng = np.random.default_rng(0)
    tasks = [
        [(rng.integers(0, 5000, n), np.ones(n, np.bool_)) for n in rng.integers(1, seq_len + 1, 400_000 // seq_len)]
        for _ in range(40)
    ]
    store = LocalStore(folder / f"store-{seq_len}")
    write_dataset(store, "data", tasks, seq_len=seq_len)
    dataset = open_dataset(store, "data")
    accumulation = global_batch // micro_batch
    count = 4_000_000 // (seq_len * micro_batch)
    with BatchReader(dataset, 1, global_batch, 0, 1, micro_batch, accumulation, 0, folder / "cache") as reader:
        next(reader)
        rates = [
            seq_len * micro_batch * count / seconds(lambda: [next(reader) for _ in range(count)]) / 1e6
            for _ in range(REPEATS)
        ]
    median_line(f"read {micro_batch} x {seq_len}, global batch {global_batch}", rates, "M tokens/s")


def bench_order() -> None:
    tasks, rows = 200_000, 512
    order = RowOrder([0] * tasks, seed=1)
    order.learn(np.arange(tasks), np.full(tasks, rows))
    print(f"an index of {tasks * rows:,} rows:")
    for step in (10, 10_000_000):
        fresh, steady = [], []
        for repeat in range(REPEATS):
            order.learn([0], [rows])  # forgets its tables, as after a restart
            slots = np.arange((step + repeat) * 64, (step + repeat + 1) * 64)
            fresh.append(seconds(lambda s=slots: order.locate(s)) * 1e3)
            steady.append(seconds(lambda s=slots: order.locate(s + 64)) * 1e3)
        median_line(f"  first batch of 64 at step {step:,}", fresh, "ms")
        median_line(f"  the next at step {step:,}", steady, "ms")


def main() -> None:
    bench_packing()
    with tempfile.TemporaryDirectory(prefix="warpbeam-bench-") as folder:
        for seq_len, global_batch, micro_batch in [(256, 64, 8), (256, 16, 4), (2048, 64, 8)]:
            bench_reader(seq_len, global_batch, micro_batch, Path(folder))
    bench_order()


if __name__ == "__main__":
    main()
