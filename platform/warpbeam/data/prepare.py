"""Prepares a job's data: plan, run the fixed tasks, judge the bad records, close the index.

Prepared once for a fingerprint: a second call finds the index and returns. Killed in the middle, the next call goes on
with the tasks that are not sealed. In the background, training reads what is sealed while the rest is made; an error
reaches both the caller and, by `failed.json`, every reader that waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from warpbeam.data.bad_records import bad_records_error
from warpbeam.data.index import FAILED, INDEX, SOURCES, Index, TaskTotals, add_stats, mark_failed, read_or_none
from warpbeam.data.prepare_plan import PreparationPlan, Split, plan_preparation
from warpbeam.data.prepare_task import Results, run_inline
from warpbeam.data.stats import TaskStats, describe_outcome, describe_places
from warpbeam.data.write import write_index
from warpbeam.errors import InfraError, UserError, WarpbeamError
from warpbeam.job import Job
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.store import ObjectStore

log = logging.getLogger(__name__)

Progress = Callable[[int, int, int, int], None]
"""(tasks done, tasks in all, rows so far, tokens so far)."""

MAX_SKIPPED_SHARE = 0.05
FILES_NAMED = 5
UNREADABLE = {"broken_json", "invalid_utf8", "nul_byte", "line_too_long"}
"""Reasons that no other format or field would mend."""


@dataclass(frozen=True)
class PreparedData:
    """Where the prepared data is and what it holds."""

    fingerprint: str
    prefix: str
    tokenizer: str
    """Prefix of the tokenizer's files (`tokenizer_store`)."""
    index: Index
    notes: tuple[str, ...]
    """What a person should know: files passed over, what the tokenizer lacks."""
    outcome: tuple[str, ...]
    """What became of records that were not used whole: skipped, cut, left out."""


def prepare(
    job: Job,
    root: Path,
    store: ObjectStore,
    config: StorageConfig,
    *,
    split: Split = "train",
    ray: bool = True,
    progress: Progress | None = None,
) -> PreparedData:
    """Prepare one of the job's data lists, and wait for it.

    Args:
        root: relative paths start here (the job file's folder).
        config: of `store`; workers open it anew, and sources on S3 are reached by it.
        ray: by Ray Data on the cluster that Ray is connected to; else in this process.

    Raises:
        UserError: sources that are not there, bad records, nothing to learn from.
    """
    plan = plan_preparation(job, root, store, config, split=split)
    index = _begin(plan, store) or _finish(plan, store, ray, progress, threading.Event())
    return _prepared(plan, index)


class Preparation:
    """A preparation in the background: readers may begin at `prefix` at once."""

    def __init__(
        self, plan: PreparationPlan, store: ObjectStore, *, ray: bool, progress: Progress | None = None
    ) -> None:
        self.prefix = plan.prefix
        self.tokenizer = plan.spec.tokenizer
        self.notes = plan.notes
        self._cancelled = threading.Event()
        self._error: BaseException | None = None
        self._plan, self._store, self._ray, self._progress = plan, store, ray, progress
        self._index = _begin(plan, store)  # before anybody reads
        self._thread = threading.Thread(target=self._run, name="warpbeam-prepare", daemon=True)
        if self._index is None:
            self._thread.start()

    @property
    def done(self) -> bool:
        """It has ended, well or badly."""
        return self._index is not None or self._error is not None

    @property
    def error(self) -> BaseException | None:
        return self._error

    def wait(self, timeout_s: float | None = None) -> PreparedData | None:
        """The prepared data, or None when it has not ended in time; raises what it failed with."""
        if not self.done:
            self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return _prepared(self._plan, self._index) if self._index is not None else None

    def cancel(self, timeout_s: float = 10.0) -> None:
        """Begin no more tasks, and wait a while for those that run. What is sealed stays; readers are told."""
        self._cancelled.set()
        if not self.done:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._index = _finish(self._plan, self._store, self._ray, self._progress, self._cancelled)
        except BaseException as error:
            self._error = error


def start_preparation(
    job: Job,
    root: Path,
    store: ObjectStore,
    config: StorageConfig,
    *,
    split: Split = "train",
    ray: bool = True,
    progress: Progress | None = None,
) -> Preparation:
    """Plan in this thread (mistakes in the job are raised here), then prepare in the background. See `prepare`."""
    return Preparation(plan_preparation(job, root, store, config, split=split), store, ray=ray, progress=progress)


def _begin(plan: PreparationPlan, store: ObjectStore) -> Index | None:
    """The index, when all was prepared before; else make the prefix ready for readers."""
    found = read_or_none(store, f"{plan.prefix}/{INDEX}")
    if found is not None:
        return Index.from_json(found)
    store.delete(f"{plan.prefix}/{FAILED}")
    store.put(f"{plan.prefix}/{SOURCES}", plan.sources.to_json())
    return None


def _finish(
    plan: PreparationPlan, store: ObjectStore, ray: bool, progress: Progress | None, cancelled: threading.Event
) -> Index:
    """Run the tasks and close the index; a failure is left for the readers to find."""
    try:
        return _run_tasks(plan, store, ray, progress, cancelled)
    except BaseException as error:
        told = error if isinstance(error, WarpbeamError) else _unexpected(error)
        try:
            mark_failed(store, plan.prefix, told)
        except WarpbeamError as unmarked:
            log.warning("readers could not be told that the preparation failed: %s", unmarked.what)
        if isinstance(error, Exception) and told is not error:
            raise told from error
        raise


def _prepared(plan: PreparationPlan, index: Index) -> PreparedData:
    outcome = (*describe_outcome(index.stats, index.seq_len, plan.spec.storage), *_fruitless_files(plan, index))
    return PreparedData(plan.fingerprint, plan.prefix, plan.spec.tokenizer, index, plan.notes, outcome)


def _fruitless_files(plan: PreparationPlan, index: Index) -> list[str]:
    """A sentence naming the files that gave no row: a filter's leavings among thousands of parts."""
    rows: dict[str, int] = {}
    for task, totals in zip(plan.tasks, index.tasks, strict=True):
        rows[task.file.uri] = rows.get(task.file.uri, 0) + totals.rows
    names = [uri.rsplit("/", 1)[-1] for uri, count in rows.items() if not count]
    if not names:
        return []
    shown = ", ".join(names[:FILES_NAMED]) + (", ..." if names[FILES_NAMED:] else "")
    return [f"{len(names)} file{'s' if names[1:] else ''} gave nothing to learn from: {shown}"]


def _run_tasks(
    plan: PreparationPlan, store: ObjectStore, ray: bool, progress: Progress | None, cancelled: threading.Event
) -> Index:
    done: dict[int, tuple[TaskTotals, TaskStats]] = {}
    rows = tokens = 0
    results = _results(plan, ray)
    try:
        for result in results:
            if result.stats.bad and plan.spec.on_bad_record == "fail":
                raise bad_records_error(result.stats, plan.spec.storage)
            done[result.task] = result.totals, result.stats
            rows += result.totals.rows
            tokens += result.stats.tokens
            if progress is not None:
                progress(len(done), len(plan.tasks), rows, tokens)
            if cancelled.is_set():
                raise InfraError("the preparation was stopped", reason="stopped")
    finally:
        results.close()
    if len(done) != len(plan.tasks):
        raise InfraError(f"only {len(done)} of {len(plan.tasks)} tasks came back", reason="preparation_failed")
    in_order = [done[number] for number in range(len(plan.tasks))]
    _check_skipped(plan, in_order)
    return write_index(store, plan.prefix, plan.sources, in_order)


def _results(plan: PreparationPlan, ray: bool) -> Results:
    if not ray or not plan.tasks:
        return run_inline(plan)
    from warpbeam.data.ray_runner import run_with_ray

    return run_with_ray(plan)


def _check_skipped(plan: PreparationPlan, results: list[tuple[TaskTotals, TaskStats]]) -> None:
    """Refuse data of which too much was skipped, and a source without a single row."""
    total = TaskStats()
    for _, stats in results:
        add_stats(total, stats)
    bad = sum(total.bad.values())
    if bad > MAX_SKIPPED_SHARE * total.records:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(total.bad.items()))
        places = describe_places(total.places, plan.spec.storage)
        raise UserError(
            "\n".join([f"{bad} of {total.records} records are bad:", *(f"  {place}" for place in places)]),
            why=f"{reasons}; more than {MAX_SKIPPED_SHARE:.0%} skipped is an error",
            fix="mend the lines named"
            if set(total.bad) <= UNREADABLE
            else "see whether format: and fields: are right for this data",
            reason="too_many_bad_records",
        )
    for number, source in enumerate(plan.sources.sources):
        mine = [result for task, result in zip(plan.tasks, results, strict=True) if task.source == number]
        if not any(totals.rows for totals, _ in mine):
            raise _nothing_left(source.path, mine)


def _nothing_left(path: str, results: list[tuple[TaskTotals, TaskStats]]) -> UserError:
    total = TaskStats()
    for _, stats in results:
        add_stats(total, stats)
    if not total.records:
        return UserError(
            f"no records in {path}", why="its files are empty or hold only blank lines", reason="no_records"
        )
    counts = {"blank": total.blank, "left out by code.render": total.left_out, "dropped as too long": total.dropped}
    counts["bad"] = sum(total.bad.values())
    reasons = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return UserError(
        f"nothing to learn from in {path}: {total.records} records, and none could be used",
        why=reasons,
        reason="no_rows",
    )


def _unexpected(error: BaseException) -> InfraError:
    return InfraError("the preparation broke off", why=f"{type(error).__name__}: {error}", reason="preparation_failed")
