"""Fits without what is then predicted: `python -m tests.benchmarks.planner_left_out [FILE.csv] [--memory-only]`.

Leave one source out: for every source the coefficients of memory and time are fitted on the others and stored in
data/left_out.json, from which `planner_accuracy` scores rows of that source. Then it prints what five folds give: of
whole sources, and of rows (other rows of the same source stay seen). Time takes tens of minutes; memory one.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import planner_fit, planner_fit_time
from tests.benchmarks.planner_accuracy import LEFT_OUT
from tests.benchmarks.planner_scores import Scored, errors_of, fit_scores, memory_error, score_memory
from tests.benchmarks.published import DATA, Reading, read_rows
from warpbeam.plan.memory_coefficients import to_dict

FOLDS: Final = 5
SEED: Final = 7


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=DATA, metavar="FILE.csv")
    parser.add_argument("--memory-only", action="store_true")
    options = parser.parse_args(arguments)
    readings = read_rows(options.file)
    write("memory", memory_without_sources(readings))
    for name, groups in (("sources", source_folds(readings)), ("rows", row_folds(readings))):
        scored = memory_folds(readings, groups)
        errors = errors_of(scored, memory_error)
        complete = errors_of([row for row in scored if row.reading.complete], memory_error)
        fit = fit_scores(scored)
        print(
            f"memory, five folds of {name}: n={errors['n']} MAPE {errors['mape']:.1%} complete {complete['mape']:.1%}"
        )
        print(f"  OOM recall {fit['oom_recall']:.1%} at fit recall {fit['fit_recall']:.1%}, ", end="")
        print(f"of those called fitting {fit['oom_among_called_fitting']:.1%} ran out", flush=True)
    if not options.memory_only:
        write("time", planner_fit_time.without_sources(options.file))


def write(section: str, found: dict[str, Any]) -> None:
    """Put one section in, leave the other as it is now."""
    stored: dict[str, Any] = {"memory": {}, "time": {}}
    if LEFT_OUT.exists():
        stored |= json.loads(LEFT_OUT.read_text(encoding="utf-8"))
    stored[section] = found
    LEFT_OUT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def memory_without_sources(readings: Sequence[Reading]) -> dict[str, Any]:
    """Source -> the coefficients of all other sources."""
    sources = dict.fromkeys(r.source for r in readings if planner_fit.fittable(r) or r.row["fits"] == "no")
    return {
        source: to_dict(planner_fit.fit([reading for reading in readings if reading.source != source]))
        for source in sources
    }


def source_folds(readings: Sequence[Reading]) -> list[set[str]]:
    """Ids of FOLDS random groups of whole sources."""
    sources = sorted({reading.source for reading in readings})
    random.Random(SEED).shuffle(sources)
    return [_ids(r for r in readings if r.source in sources[fold::FOLDS]) for fold in range(FOLDS)]


def row_folds(readings: Sequence[Reading]) -> list[set[str]]:
    """Ids of FOLDS random groups of rows."""
    ids = [reading.id for reading in readings]
    random.Random(SEED).shuffle(ids)
    return [set(ids[fold::FOLDS]) for fold in range(FOLDS)]


def memory_folds(readings: Sequence[Reading], folds: Sequence[set[str]]) -> list[Scored]:
    """Every row with memory predicted from the other folds."""
    found = []
    for fold in folds:
        coefficients = planner_fit.fit([reading for reading in readings if reading.id not in fold])
        for reading in readings:
            if reading.id in fold:
                memory, fullest = score_memory(reading, coefficients)
                found.append(
                    Scored(reading=reading, memory=memory, fullest=fullest, speed=None, units=None, tokens_per_s=None)
                )
    return found


def _ids(readings: Iterable[Reading]) -> set[str]:
    return {reading.id for reading in readings}


if __name__ == "__main__":
    main()
