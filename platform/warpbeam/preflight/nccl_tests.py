"""nccl-tests' own programs, where the image has them: one process for all GPUs of this machine, beside our figures."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Final

from warpbeam.preflight.busbw import Op
from warpbeam.preflight.measured import Measured, ProgramSaid, Skipped

PROGRAMS: Final = {
    Op.ALL_REDUCE: "all_reduce_perf",
    Op.ALL_GATHER: "all_gather_perf",
    Op.REDUCE_SCATTER: "reduce_scatter_perf",
    Op.ALL_TO_ALL: "alltoall_perf",
}
SIZES: Final = ("-b", "8", "-e", "1G", "-f", "8")
_COLUMNS: Final = 13
"""size, count, type, redop, root; then twice (out of place, in place): time, algbw, busbw, wrong results."""
_SIZE, _OUT_OF_PLACE, _WRONG = 0, 7, 8


def run(measured: Measured, within_s: float) -> None:
    """Start each program once the ranks have ended, and note its last line in `measured`. Nothing on CPUs."""
    gpus = [rank for rank in measured.ranks if not rank.on_cpu]
    if len(gpus) < 2 or measured.lost or len({rank.machine for rank in gpus}) > 1:
        return
    for op, program in PROGRAMS.items():
        if (path := shutil.which(program)) is None:
            measured.skipped.append(Skipped(program, "it is not in this image"))
            continue
        try:
            done = subprocess.run(
                [path, *SIZES, "-g", str(len(gpus))], capture_output=True, text=True, timeout=within_s / len(PROGRAMS)
            )
        except subprocess.TimeoutExpired:
            measured.skipped.append(Skipped(program, f"no end in {within_s / len(PROGRAMS):.0f} s"))
            continue
        lines = list(parse(op, done.stdout))
        if done.returncode != 0 or not lines:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            measured.skipped.append(Skipped(program, f"exit code {done.returncode}: {''.join(last)[:200]}"))
            continue
        measured.programs += lines


def parse(op: Op, text: str) -> Iterator[ProgramSaid]:
    """The lines of its table; sizes in bytes, busbw in bytes/s."""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("#") or len(words) != _COLUMNS or not words[_SIZE].isdigit():
            continue
        wrong = int(words[_WRONG]) if words[_WRONG].isdigit() else 0  # N/A where it was told not to check
        yield ProgramSaid(op, int(words[_SIZE]), float(words[_OUT_OF_PLACE]) * 1e9, wrong)
