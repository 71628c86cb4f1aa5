"""Run by torchrun: several runs of the engine, one after another in the same processes, as the command would do them.

    torchrun --nproc-per-node 2 -m tests.integration.engine_runs JOB.yaml...

A job that is named twice goes on where it was stopped. Prints one line with the outcome of each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from warpbeam.train import torchrun
from warpbeam.train.context import Context
from warpbeam.train.ranks import join, pick_device


class StopAfterSix:
    """A callback of a user's: asks this attempt to stop after step 6, unless it began later."""

    def on_step(self, ctx: Context, row: object) -> None:
        if ctx.step_done == 5 and ctx.rank == ctx.world_size - 1:
            ctx.ask_to_stop()


def main(jobs: list[str]) -> None:
    torch.set_num_threads(1)
    ranks = join(pick_device())
    for job in jobs:
        outcome = torchrun.train(torchrun.Options(Path(job)), ranks)
        if ranks.is_first:
            print(f"outcome {Path(job).stem} {outcome.state if outcome else 'finished'}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
