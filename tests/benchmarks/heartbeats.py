"""What watching costs a rank, timed directly: `python -m tests.benchmarks.heartbeats [--step-s 0.38] [--json]`.

In the loop: the signs of life and marks of one step, as the built-in loop gives them. Beside it: working out and
sending a heartbeat, once in five seconds, all of which is counted as if it took the loop's time. Both in processor
time: who waits for a disk on another thread takes nothing from the loop. And torch's flight recorder: what one
collective takes with it and without, in turns, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from warpbeam.record.phases import PhaseClock
from warpbeam.record.writer import HEARTBEAT_S, STEP_DIR_VARIABLE, RecordWriter
from warpbeam.storage.local import LocalStore

STEPS = 20_000
HEARTBEATS = 200
TURNS = 5
LIMIT = 0.001
COLLECTIVE = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
value = torch.ones(4)
for _ in range(2000):
    dist.all_reduce(value)
began = time.perf_counter()
for _ in range(20000):
    dist.all_reduce(value)
print((time.perf_counter() - began) / 20000)
"""


def main() -> None:
    """Measure and print; exit code 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-s", type=float, default=0.38, help="a step's length: default, that of bench-overhead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wb-bench-") as folder:
        os.environ[STEP_DIR_VARIABLE] = folder
        loop_s, sent_s = in_the_loop(Path(folder)), beside_it(Path(folder))
    share = loop_s / options.step_s + sent_s / HEARTBEAT_S
    without, with_it = collective_s(0), collective_s(2000)
    told = {
        "loop_us_per_step": round(1e6 * loop_s, 2),
        "heartbeat_us": round(1e6 * sent_s, 1),
        "share_of_step": round(share, 6),
        "collective_us": [round(1e6 * without, 2), round(1e6 * with_it, 2)],
    }
    if options.json:
        print(json.dumps(told))
    else:
        print(f"in the loop        {told['loop_us_per_step']:>8} us a step")
        print(f"a heartbeat        {told['heartbeat_us']:>8} us, one in {HEARTBEAT_S:.0f} s")
        print(f"together           {100 * share:>8.4f} % of a step of {options.step_s} s (limit {100 * LIMIT} %)")
        print(f"a collective       {1e6 * without:>8.2f} us, with the flight recorder {1e6 * with_it:.2f} us")
    raise SystemExit(0 if share < LIMIT else 1)


def in_the_loop(folder: Path) -> float:
    """Seconds a step, of one micro-batch: the marks and signs of life of `train.context` and `recipes.lm`."""
    with RecordWriter(
        LocalStore(folder / "store"), "t", "r", "a", "rank-0", clock=PhaseClock(), flush_s=3600
    ) as record:
        began = time.thread_time()
        for step in range(STEPS):
            record.mark("data")
            record.beat(step)
            record.mark("forward", passes=True)
            record.mark("backward")
            record.mark("optimizer")
            record.mark("sync")
            record.mark("callbacks", passes=True)
            record.beat(step)
        return (time.thread_time() - began) / STEPS


def beside_it(folder: Path) -> float:
    """Seconds for a heartbeat: worked out, written as JSON, put into a store on this disk."""
    with RecordWriter(
        LocalStore(folder / "store"), "t", "r", "b", "rank-0", clock=PhaseClock(), flush_s=3600
    ) as record:
        for step in range(100):
            record.mark("forward", passes=True)
            record.beat(step)
        began = time.thread_time()
        for _ in range(HEARTBEATS):
            record.send_heartbeat(final=True)
        return (time.thread_time() - began) / HEARTBEATS


def collective_s(recorded: int) -> float:
    """Median seconds of an all-reduce of four numbers on one rank: nothing but what torch does around it."""
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": str(recorded), "OMP_NUM_THREADS": "1"}
    turns = [
        subprocess.run([sys.executable, "-c", COLLECTIVE], env=env, capture_output=True, check=True)
        for _ in range(TURNS)
    ]
    return statistics.median(float(turn.stdout) for turn in turns)


if __name__ == "__main__":
    main()
