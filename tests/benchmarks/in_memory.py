"""The built-in loop on batches that lie in memory as ready tensors: what training costs without any data path.

`recipe: "tests.benchmarks.in_memory:train"`. Reading ends before the first step; the engine is untouched.
"""

from __future__ import annotations

from typing import Any

from warpbeam.data.reader import BatchReader, MicroBatch
from warpbeam.train import context
from warpbeam.train.batch import Batch, make_batch
from warpbeam.train.context import Context
from warpbeam.train.recipes import lm


class InMemory(BatchReader):
    """Reads everything up to `end_step` when it is entered."""

    _rows: list[MicroBatch]

    def __enter__(self) -> InMemory:
        super().__enter__()
        self._rows = list(self)
        self._rows.reverse()
        return self

    def __next__(self) -> MicroBatch:
        if not self._rows:
            raise StopIteration
        return self._rows.pop()


def train(ctx: Context) -> None:
    """As `warpbeam.train.recipes.lm`, with everything that comes before the forward pass done beforehand."""

    class Ready(InMemory):
        def __enter__(self) -> Ready:
            super().__enter__()
            self._rows = [make_batch(rows, ctx.packing, ctx.device) for rows in self._rows]  # type: ignore[misc]
            return self

    def ready(batch: Any, *_: object) -> Batch:
        return batch  # type: ignore[no-any-return]

    context.BatchReader = Ready  # type: ignore[misc]
    context.make_batch = ready
    lm.train(ctx)
