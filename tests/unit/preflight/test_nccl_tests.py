"""nccl-tests' own programs: their table is read, and a program that is missing, fails or hangs is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.preflight.made_up import healthy
from warpbeam.preflight import nccl_tests
from warpbeam.preflight.busbw import Op
from warpbeam.preflight.expected import Expected
from warpbeam.preflight.judge import judge
from warpbeam.preflight.verdict import Level

TABLE = """\
# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 8(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    21.77    0.00    0.00      0    21.42    0.00    0.00      0
  1073741824     268435456     float     sum      -1   4100.0  261.89  458.30      {wrong}   4098  262.01  458.52    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 229.1
"""


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_its_table_is_read() -> None:
    small, large = nccl_tests.parse(Op.ALL_REDUCE, TABLE.format(wrong=0))
    assert (small.size_bytes, large.size_bytes, large.busbw, large.wrong) == (8, 1 << 30, 458.3e9, 0)
    assert next(nccl_tests.parse(Op.ALL_REDUCE, TABLE.format(wrong=3).splitlines()[4])).wrong == 3


def test_what_the_image_has_runs_once_for_all_gpus_and_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table").write_text(TABLE.format(wrong=0))
    program(
        tmp_path,
        "all_reduce_perf",
        f'[ "$*" = "-b 8 -e 1G -f 8 -g 8" ] && while read l; do echo "$l"; done < {tmp_path}/table',
    )
    program(tmp_path, "all_gather_perf", "echo 'no device' >&2; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path))
    measured = healthy(1, 8, device="NVIDIA H100 80GB HBM3")
    nccl_tests.run(measured, 40.0)
    verdict = judge(measured, Expected(kind="H100", inside=450e9))
    (row,) = [row for row in verdict.rows if row.check.startswith("nccl-tests")]
    assert (row.measured, row.level) == ("458 GB/s busbw at 1 GiB", Level.OK)
    assert {skip.what: skip.why for skip in measured.skipped} == {
        "all_gather_perf": "exit code 3: no device",
        "reduce_scatter_perf": "it is not in this image",
        "alltoall_perf": "it is not in this image",
    }


def test_on_cpus_there_is_nothing_to_run() -> None:
    measured = healthy(1, 8)
    nccl_tests.run(measured, 40.0)
    assert (measured.skipped, measured.programs) == ([], [])
