"""`preflight: require` in a pool: no rank of a job trains before the machines under it have been measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warpbeam.launch.attempt import Reporter, StoppedEarly
from warpbeam.preflight.launch import Result, ask_of, preflight_on_ray

if TYPE_CHECKING:
    from warpbeam.pool import Pool
    from warpbeam.record.writer import RecordWriter


def gate(
    pool: Pool, ranks: int, record: RecordWriter, reporter: Reporter, stop_wanted: Callable[[], bool], join_s: float
) -> None:
    """Measure the quick way, in the Ray that is up, and write the verdict into the record.

    Raises:
        PreflightFailed: with the one who is to blame.
        StoppedEarly: `stop_wanted` came true meanwhile.
    """
    reporter.note(f"preflight of {ranks} ranks: pool {pool.name} requires it")

    def progress(phase: str, done: int, of: int) -> None:
        if stop_wanted():
            raise StoppedEarly

    ask = ask_of(pool, quick=True, budget_s=None, local=False, join_s=join_s)
    result = preflight_on_ray(pool, ranks, ask, progress=progress)
    _write(result, record)
    result.refuse()
    reporter.note(f"preflight {result.verdict.sentence}")


def _write(result: Result, record: RecordWriter) -> None:
    record.event(
        "preflight",
        passed=result.verdict.passed,
        sentence=result.verdict.sentence,
        suspects=[suspect.where for suspect in result.verdict.suspects],
        seconds=round(sum(result.measured.seconds.values()), 1),
    )
