"""Examples and data sets made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warpbeam.data.dataset import Dataset, open_dataset
from warpbeam.data.write import write_dataset
from warpbeam.storage.local import LocalStore

Arrays = tuple[NDArray[np.integer], NDArray[np.bool_]]
"""Token ids, and which of them carry loss."""

PREFIX = "teams/a/data/arrays"


def examples(rng: np.random.Generator, count: int, seq_len: int) -> list[Arrays]:
    """Random examples of 1 to seq_len tokens; each token carries loss with an even chance."""
    lengths = rng.integers(1, seq_len + 1, count)
    return [(rng.integers(1, 1000, n), rng.random(n) < 0.5) for n in lengths]


def dataset(
    folder: Path,
    examples_per_task: list[int],
    *,
    seq_len: int = 16,
    seed: int = 0,
    task_sources: list[int] | None = None,
) -> Dataset:
    rng = np.random.default_rng(seed)
    tasks = [examples(rng, count, seq_len) for count in examples_per_task]
    store = LocalStore(folder)
    write_dataset(store, PREFIX, tasks, seq_len=seq_len, task_sources=task_sources)
    return open_dataset(store, PREFIX)
