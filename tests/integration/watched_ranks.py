"""A rank of the monitor's test: what `train.context` does around a step, with gloo and without a model.

    python -m tests.integration.watched_ranks FOLDER RANK FAULT

At step 300 rank 1 (or both) does as FAULT says; the test stops processes itself.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from warpbeam.record.view import LOSS
from warpbeam.record.writer import RecordWriter
from warpbeam.storage.local import LocalStore
from warpbeam.train.diagnostics import switch_on

FAULT_STEP = 300
PACE_S = 0.01
BUSY_S = 45.0
TEAM, ATTEMPT = "watched", "0001-aa"


def main(folder: Path, rank: int, fault: str) -> None:
    """Train nothing, for ever."""
    stacks = switch_on(str(folder / "ranks"), rank, nccl=False)
    store = dist.FileStore(str(folder / "meet"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    value = torch.ones(8)
    with RecordWriter(
        LocalStore(folder / "store"), TEAM, fault, ATTEMPT, f"rank-{rank}", on_late=stacks.write
    ) as record:
        for step in range(1_000_000):
            record.mark("data")
            record.beat(step)
            record.mark("forward", passes=True)
            time.sleep(PACE_S)
            record.mark("backward")
            if step == FAULT_STEP and rank == 1 and not go_on(record, fault, value):
                break
            dist.all_reduce(value)
            record.mark("sync")
            dist.all_reduce(torch.ones(3))
            record.mark("callbacks", passes=True)
            if step == FAULT_STEP and fault == "busy":
                work()
            record.beat(step + 1)
            if rank == 0:
                record.metrics({"step": step + 1, LOSS: 1.0})
        time.sleep(3600)  # the record's thread goes on, as while a rank waits in its last save


def go_on(record: RecordWriter, fault: str, value: torch.Tensor) -> bool:
    """Rank 1's fault; whether it stays in the loop."""
    if fault == "leaves":
        record.left_loop()
        return False
    if fault == "diverges":
        dist.all_gather([torch.ones(8), torch.ones(8)], value)
    return True


def work() -> None:
    """An evaluation that says nothing for as long as thousands of steps take."""
    began = time.monotonic()
    while time.monotonic() - began < BUSY_S:
        torch.ones(64, 64) @ torch.ones(64, 64)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
