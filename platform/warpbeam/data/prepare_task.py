"""One task of a preparation: a pure function of its bytes and the spec, wherever it runs.

Ray Data's tasks and the inline runner call the same function, so their parts are the same bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import asdict
from functools import lru_cache
from typing import NamedTuple

from warpbeam.data.encoder import Encoder
from warpbeam.data.examples import iter_examples
from warpbeam.data.index import Seal, TaskTotals, read_or_none, seal_key, stats_from_dict
from warpbeam.data.prepare_plan import PreparationPlan, TaskSpec
from warpbeam.data.sources import Task
from warpbeam.data.stats import TaskStats
from warpbeam.data.tokenizer_store import load_stored_tokenizer
from warpbeam.data.write import build_part, part_file, store_part
from warpbeam.storage.connect import open_store
from warpbeam.storage.patience import PatientStore
from warpbeam.storage.store import ObjectStore


class TaskResult(NamedTuple):
    """What a task came to."""

    task: int
    totals: TaskTotals
    stats: TaskStats

    def to_json(self) -> str:
        return json.dumps([self.task, self.totals, asdict(self.stats)])

    @classmethod
    def from_json(cls, text: str) -> TaskResult:
        task, totals, stats = json.loads(text)
        return cls(task, TaskTotals(*totals), stats_from_dict(stats))


Results = Generator[TaskResult, None, None]


class TaskRunner:
    """Runs tasks of one spec in this process; the tokenizer is loaded once, when the first of them needs it."""

    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec
        self._store: ObjectStore = PatientStore(open_store(spec.storage))
        self._encoder: Encoder | None = None

    def run(self, number: int, task: Task) -> TaskResult:
        """Write the task's part and seal, unless it is sealed already."""
        sealed = read_or_none(self._store, seal_key(self._spec.prefix, number))
        if sealed is None:
            return self.encode(number, task)
        seal = Seal.from_json(sealed)
        return TaskResult(number, seal.totals, seal.stats)

    def encode(self, number: int, task: Task) -> TaskResult:
        """Make the task's part and seal it; a task with bad records is not sealed where the job says `fail`."""
        spec, stats = self._spec, TaskStats()
        examples = iter_examples(task, spec.rules[task.source], self._get_encoder(), spec.storage, stats)
        with part_file() as (file, path):
            built = build_part(examples, file, seq_len=spec.seq_len, packing=spec.packing)
            if stats.bad and spec.on_bad_record == "fail":
                return TaskResult(number, TaskTotals(0, 0, stats.lines), stats)
            seal = store_part(self._store, spec.prefix, number, path, built, stats)
        return TaskResult(number, seal.totals, seal.stats)

    def _get_encoder(self) -> Encoder:
        if self._encoder is None:
            spec = self._spec
            self._encoder = Encoder(
                load_stored_tokenizer(self._store, spec.tokenizer, trust_remote_code=spec.trust_remote_code),
                seq_len=spec.seq_len,
                method=spec.method,
                over_length=spec.over_length,
                render=spec.render.load() if spec.render else None,
            )
        return self._encoder


@lru_cache(maxsize=2)
def runner_for(spec: str) -> TaskRunner:
    """This process's runner for a spec (as JSON): a worker that gets many tasks builds it once."""
    return TaskRunner(TaskSpec.from_json(spec))


def run_inline(plan: PreparationPlan) -> Results:
    """All tasks, one after another, in this process."""
    runner = TaskRunner(plan.spec)
    for number in plan.order:
        yield runner.run(number, plan.tasks[number])
