"""Runs a preparation's tasks on a Ray cluster, by Ray Data.

The input is the list of tasks, in the order in which training needs them; each task reads its own piece of the sources
and writes its own part, and only counts come back. So nothing depends on blocks, fusion or the number of workers, and
no data flows through the object store. (Ray Data's own readers are not used: see the fusion fault in the ADR.)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from warpbeam.data.files import SourceFile
from warpbeam.data.index import error_from_dict
from warpbeam.data.prepare_plan import PreparationPlan
from warpbeam.data.prepare_task import Results, TaskResult, runner_for
from warpbeam.data.sources import Task
from warpbeam.errors import InfraError, PlatformError, WarpbeamError

DEFAULT_CPUS_PER_TASK = 0.5
"""So that a preparation finds room beside training workers on a small machine."""
_MAX_BLOCKS = 10_000
_BYTES_WORTH_A_WORKER = 2 * 2**20
"""A new worker imports for seconds; with less than this to do, one after the other in a running one is sooner done."""
_MAX_RETRIES = 3
"""Of a task whose worker died. Ray Data's own default is without end: a record that kills its worker would hang it."""


def run_with_ray(plan: PreparationPlan, *, cpus_per_task: float = DEFAULT_CPUS_PER_TASK) -> Results:
    """All tasks, as they end. Ray must be initialised; closing the iterator stops the tasks that have not begun."""
    import ray
    from ray.data import DataContext

    if not ray.is_initialized():
        raise PlatformError("this process is not connected to Ray", fix="call ray.init first, or prepare without Ray")
    items = [{"number": number, "task": json.dumps(asdict(plan.tasks[number]))} for number in plan.order]
    with _quiet(DataContext.get_current()):
        tasks = ray.data.from_items(items, override_num_blocks=_blocks(plan.tasks))
        results = tasks.map(
            _run_task, fn_kwargs={"spec": plan.spec.to_json()}, num_cpus=cpus_per_task, max_retries=_MAX_RETRIES
        )
        try:
            for row in results.iter_rows():
                if row["error"]:
                    raise error_from_dict(json.loads(row["error"]))
                yield TaskResult.from_json(row["result"])
        except ray.exceptions.RayError as error:
            raise InfraError(
                "Ray could not finish the preparation",
                why=f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}",
                fix="the same command again goes on with what is sealed already",
                reason="preparation_failed",
            ) from error


def _blocks(tasks: Sequence[Task]) -> int:
    """Into how many Ray tasks ours are put: one each where they are large."""
    size = sum({task.file.uri: task.file.size for task in tasks}.values())
    return min(len(tasks), _MAX_BLOCKS, max(1, size // _BYTES_WORTH_A_WORKER))


def _run_task(item: dict[str, Any], spec: str) -> dict[str, str]:
    """In a Ray worker. Our errors come back as values: Ray would wrap them in tracebacks."""
    fields = json.loads(item["task"])
    task = Task(fields["source"], SourceFile(**fields["file"]), fields["start"], fields["end"])
    try:
        return {"result": runner_for(spec).run(item["number"], task).to_json(), "error": ""}
    except WarpbeamError as error:
        return {"result": "", "error": json.dumps(error.to_dict())}


@contextmanager
def _quiet(context: Any) -> Iterator[None]:
    """No bars and no chatter of Ray Data: progress is reported by whoever asked for the preparation."""
    bars = context.enable_progress_bars
    context.enable_progress_bars = False
    for handler in logging.getLogger("ray.data").handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.setLevel(logging.ERROR)  # for good: its threads say their last words after the last row came
    try:
        yield
    finally:
        context.enable_progress_bars = bars
