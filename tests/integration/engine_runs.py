"""Run by torchrun: several runs of the engine, one after another in the same processes, as the command would do them.

    torchrun --nproc-per-node 2 -m tests.integration.engine_runs JOB.yaml...

A job that is named twice goes on where it was stopped. Prints what the command prints, and its exit code.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from warpbeam.train import __main__ as command
from warpbeam.train.context import Context
from warpbeam.train.process_end import end_with


class StopAfterSix:
    """A callback of a user's: asks this attempt to stop after step 6, unless it began later."""

    def on_step(self, ctx: Context, row: object) -> None:
        if ctx.step_done == 5 and ctx.rank == ctx.world_size - 1:
            ctx.ask_to_stop()


def main(jobs: list[str]) -> int:
    torch.set_num_threads(1)
    for job in jobs:
        code = command.main([job])
        if os.environ["RANK"] == "0":
            print(f"exit code of {Path(job).stem}: {code}", flush=True)
    return 0


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
