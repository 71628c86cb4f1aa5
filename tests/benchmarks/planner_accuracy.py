"""How well the planner predicts published runs: `python -m tests.benchmarks.planner_accuracy [FILE.csv]`.

Prints coverage, memory, fit and speed errors, by source, leave-one-source-out and beside two baselines. `--json` prints
the same as JSON; `--predictions OUT.csv` writes one line a row. Leave-one-source-out uses the coefficients that
`python -m tests.benchmarks.planner_left_out` stored, fitted without the source of the row.
"""

from __future__ import annotations

import argparse
import csv
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.planner_scores import (
    Scored,
    by_source,
    constant_flops,
    coverage,
    errors_of,
    fit_scores,
    memory_error,
    score_row,
    speed_error,
    states_only,
)
from tests.benchmarks.published import DATA, Reading, read_rows
from tests.benchmarks.published_speed import mfu_error as mfu_error_of
from warpbeam.errors import UserError
from warpbeam.plan.memory_coefficients import from_dict
from warpbeam.plan.time_coefficients import COEFFICIENTS

LEFT_OUT: Final = DATA.with_name("left_out.json")
COLUMNS: Final = (
    "id",
    "pred_peak_mem_GiB",
    "pred_fits",
    "pred_tokens_per_s_per_gpu",
    "pred_step_s",
    "pred_tflops_per_gpu",
    "pred_MFU_pct",
    "skipped_because",
)


def main(arguments: Sequence[str] | None = None) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=DATA, metavar="FILE.csv")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--predictions", type=Path, metavar="OUT.csv")
    options = parser.parse_args(arguments)
    try:
        readings = read_rows(options.file)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    rows = [score_row(reading) for reading in readings]
    if options.predictions:
        try:
            write_predictions(rows, options.predictions)
        except OSError as error:
            print(f"error: {options.predictions} cannot be written\nwhy: {error}", file=sys.stderr)
            raise SystemExit(UserError.exit_code) from None
    found = report(rows, left_out(readings))
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print_report(found)


def report(rows: Sequence[Scored], without_source: Sequence[Scored]) -> dict[str, Any]:
    """Everything that is printed."""
    complete = [row for row in rows if row.reading.complete]
    loso_memory, loso_speed = errors_of(without_source, memory_error), errors_of(without_source, speed_error)
    return {
        "coverage": coverage(rows),
        "memory": errors_of(rows, memory_error)
        | {
            "complete": errors_of(complete, memory_error),
            "loso_mape": loso_memory.get("mape"),
            "loso_median_error": loso_memory.get("median_error"),
            "loso_complete": errors_of([row for row in without_source if row.reading.complete], memory_error),
            "by_source": by_source(rows, memory_error),
            "loso_by_source": by_source(without_source, memory_error),
        },
        "fit": fit_scores(rows) | {"loso": fit_scores(without_source)},
        "speed": errors_of(rows, speed_error)
        | {
            "loso_median_error": loso_speed.get("median_error"),
            "loso_mape": loso_speed.get("mape"),
            "by_source": by_source(rows, speed_error),
            "loso_by_source": by_source(without_source, speed_error),
        },
        "mfu": errors_of(rows, mfu_error)
        | {"loso_median_error": errors_of(without_source, mfu_error).get("median_error")},
        "baselines": {"states_only": states_only(rows), "constant_flops": constant_flops(rows)},
    }


def mfu_error(row: Scored) -> float | None:
    """Of the MFU or FLOP/s a row states."""
    return mfu_error_of(row.reading, row.units) if row.units else None


@lru_cache(maxsize=1)
def _stored() -> dict[str, dict[str, Any]]:
    if not LEFT_OUT.exists():
        return {"memory": {}, "time": {}}
    found: dict[str, dict[str, Any]] = json.loads(LEFT_OUT.read_text(encoding="utf-8"))
    return found


def left_out(readings: Sequence[Reading]) -> list[Scored]:
    """Each row scored with coefficients fitted without its source. A source that no fit has seen takes the shipped."""
    stored = _stored()
    memory = {source: from_dict(value) for source, value in stored["memory"].items()}
    base: Mapping[str, float] = COEFFICIENTS | stored["time"].get("", {})  # a newer name takes what is shipped
    time = {source: base | changed for source, changed in stored["time"].items()}
    return [score_row(reading, memory.get(reading.source), time.get(reading.source)) for reading in readings]


def write_predictions(rows: Sequence[Scored], path: Path) -> None:
    """One line a row; empty where there is no prediction."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in rows:
            units = row.units or {}
            fits = "" if row.fits is None else "yes" if row.fits else "no"
            numbers = [
                row.peak_gib,
                *(units.get(name) for name in ("tokens_per_s_per_gpu", "step_s", "tflops_per_gpu", "MFU_pct")),
            ]
            shown = ["" if number is None else f"{number:.6g}" for number in numbers]
            writer.writerow([row.reading.id, shown[0], fits, *shown[1:], row.skipped_because])


def print_report(found: Mapping[str, Any]) -> None:
    """For people."""
    seen = found["coverage"]
    print(f"coverage  {seen['predicted']} of {seen['rows']} rows ({seen['share']:.1%}); each measurement:")
    print(f"          memory {seen['memory']['share']:.1%} of {seen['memory']['rows']}, ", end="")
    print(f"speed {seen['speed']['share']:.1%} of {seen['speed']['rows']}")
    for reason, count in seen["skipped"].items():
        print(f"          {count} lack {reason}")
    memory, speed, fit, base = found["memory"], found["speed"], found["fit"], found["baselines"]
    print(_errors("memory", memory))
    print(_errors("  complete", memory["complete"]) + "  (inputs all stated)")
    print(f"  leave one source out: MAPE {_percent(memory['loso_mape'])}, ", end="")
    print(f"complete {_percent(memory['loso_complete'].get('mape'))}")
    print(_errors("  states only", base["states_only"]["memory"]) + "  (baseline)")
    print("fit       " + _fit(fit))
    print("  leave one source out: " + _fit(fit["loso"]))
    print(f"  states only: OOM recall {_percent(base['states_only']['oom_recall'])}, ", end="")
    print(f"fit recall {_percent(base['states_only']['fit_recall'])}  (baseline)")
    print(_errors("speed", speed))
    print(f"  leave one source out: median {_percent(speed['loso_median_error'])}, ", end="")
    print(f"MAPE {_percent(speed['loso_mape'])}")
    print(_errors("mfu", found["mfu"]) + ", in each source's formula")
    print(f"  leave one source out: median {_percent(found['mfu']['loso_median_error'])}")
    print(_errors("  constant FLOP/s", base["constant_flops"]) + "  (baseline, leave one source out)")
    for name, part in (("memory", memory), ("speed", speed)):
        print(f"{name} by source: n, MAPE, median error, bias; leave one source out: MAPE, median error")
        for source, own in part["by_source"].items():
            out = part["loso_by_source"].get(source, {})
            print(
                f"  {source:22}{own['n']:4} {own['mape']:7.1%} {own['median_error']:7.1%} {own['bias']:+7.1%}"
                f"   {_percent(out.get('mape')):>6} {_percent(out.get('median_error')):>6}"
            )


def _errors(name: str, found: Mapping[str, float]) -> str:
    if not found["n"]:
        return f"{name:18}n=0"
    errors = f"MAPE {found['mape']:.1%}, median {found['median_error']:.1%}, bias {found['bias']:+.1%}"
    return f"{name:18}n={found['n']} {errors}"


def _fit(found: Mapping[str, Any]) -> str:
    caught = f"OOM recall {_percent(found['oom_recall'])} of {found['n_oom']}"
    passed = f"fit recall {_percent(found['fit_recall'])} of {found['n_fit']}"
    called = f"of those called fitting {_percent(found['oom_among_called_fitting'])} ran out"
    promised = f"of the {found['n_promised']} promised {_percent(found['oom_among_promised'])}"
    return f"{caught} at {passed}; {called}, {promised}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


if __name__ == "__main__":
    main()
