"""Training beside an upload: `python -m tests.benchmarks.beside [--blocks 10] [--megabytes 384] [--json]`.

Steps a second of a small model's training loop while a checkpoint of `--megabytes` is written, uploaded and committed
beside it, divided by those without. The loop is pinned to the first core; the save's threads and the S3 server, all
threads of it, to the second. On a training machine they have cores of their own too; what the loop can still lose is
the interpreter's lock and the memory's bandwidth.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from tests.benchmarks.checkpoint import Bench
from tests.benchmarks.paired import Ratio, load, report
from tests.benchmarks.scene import MODEL
from warpbeam.storage.embedded import stop_server

ROWS, TOKENS = 2, 64


class Loop:
    """An optimizer step after another."""

    def __init__(self) -> None:
        self._model = AutoModelForCausalLM.from_config(Qwen2Config(**MODEL))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._ids = torch.randint(0, MODEL["vocab_size"], (ROWS, TOKENS))

    def rate(self, go_on: Callable[[int], bool]) -> float:
        """Steps a second for as long as `go_on(steps taken)`."""
        count, began = 0, time.perf_counter()
        while go_on(count):
            self._model(input_ids=self._ids, labels=self._ids).loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            count += 1
        self.count = count
        return count / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=384)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        sys.exit("one core: there is no other one for the upload")
    torch.set_num_threads(1)
    beside: list[float] = []
    alone: list[float] = []
    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        home = Path(folder) / "home"
        os.environ["WARPBEAM_HOME"] = str(home)
        try:
            bench, loop = Bench(Path(folder), options.megabytes), Loop()
            loop.rate(lambda count: count < 20)
            for block in range(-1, options.blocks):
                pin_all(bench.server, others[0])
                busy = save_beside(bench, loop, first, others[0])
                quiet = loop.rate(lambda count, until=loop.count: count < until)  # type: ignore[misc]
                if block >= 0:
                    beside.append(busy)
                    alone.append(quiet)
        finally:
            stop_server(home)
    ratio = Ratio("steps/s beside an upload / without", [b / a for b, a in zip(beside, alone, strict=True)], 0.95)
    facts = {
        "pinned": f"the loop to core {first}; the save's threads and the S3 server to core {others[0]}",
        "steps/s beside, without": [round(statistics.median(rates), 1) for rates in (beside, alone)],
        "load": round(load(), 2),
    }
    report([ratio], facts, as_json=options.json)


def save_beside(bench: Bench, loop: Loop, own_core: int, other_core: int) -> float:
    """Steps a second from the end of the copy to the commit."""
    bench.step += 1
    os.sched_setaffinity(0, {other_core})  # a thread begins on the cores of the one that starts it
    bench.background.save(bench.state, bench.step, {}, {})  # type: ignore[arg-type]
    os.sched_setaffinity(0, {own_core})
    rate = loop.rate(lambda count: count < 5 or not bench.background.progress().uploaded)
    bench.background.settle()
    return rate


def pin_all(process: psutil.Process, core: int) -> None:
    """Every thread that it has now; those that they start begin there."""
    for thread in process.threads():
        os.sched_setaffinity(thread.id, {core})


if __name__ == "__main__":
    main()
