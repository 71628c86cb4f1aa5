"""`torchrun --nproc-per-node 2 -m warpbeam.train JOB.yaml`: the bare engine on prepared data, without Ray."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warpbeam.errors import WarpbeamError
from warpbeam.train.process_end import end_with, end_with_launcher

if TYPE_CHECKING:
    from warpbeam.train.torchrun import Options


def main(arguments: Sequence[str]) -> int:
    """Train as the rank that the launcher's environment names; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m warpbeam.train", description=__doc__)
    parser.add_argument("job", type=Path, help="the job file")
    parser.add_argument("--pool", help="a pool file, or its name in cluster/pools (default: this machine)")
    parser.add_argument("--fresh", action="store_true", help="train anew under the next free name")
    parser.add_argument("--allow", action="append", default=[], metavar="KEY", help="go on although KEY has changed")
    given = parser.parse_args(arguments)
    os.environ.setdefault("RANK", "0")  # without torchrun: one process
    for name, value in (("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)
    first = os.environ["RANK"] == "0"
    from warpbeam.train import torchrun
    from warpbeam.train.ranks import join, pick_device

    options = torchrun.Options(given.job, given.pool, given.fresh, tuple(given.allow))
    ranks = join(pick_device())
    try:
        outcome = torchrun.train(options, ranks)
    except Exception as error:
        told = error if isinstance(error, WarpbeamError) else torchrun.explain(error)
        if told is None:
            raise
        if first or told is not error:
            print(f"error: {told}", file=sys.stderr, flush=True)
        return told.exit_code
    if first:
        print(_farewell(outcome, options), flush=True)
    return 0


def _farewell(outcome: object, options: Options) -> str:
    from warpbeam.job import load_job
    from warpbeam.train.worker import Outcome

    if not isinstance(outcome, Outcome):
        return "this run is finished already: nothing to do (--fresh trains it anew)"
    if outcome.state == "stopped":
        return f"stopped after step {outcome.step}, with a checkpoint; the same command goes on from there"
    following = "list    # under which name" if options.fresh else f"export {load_job(options.job).job.name}"
    return f"done: {outcome.step} steps\n  $ warpbeam {following}"


if __name__ == "__main__":
    end_with_launcher()
    end_with(lambda: main(sys.argv[1:]))
