"""What the whole path costs beside the bare engine: `python -m tests.benchmarks.overhead [--blocks 12] [--json]`.

Steady tokens/s of `warpbeam run` (prepared by Ray Data, Ray Train, ZeRO-3, the embedded S3 server) divided by those of
the same engine under torchrun on batches that lie in memory as tensors (`tests.benchmarks.in_memory`), its run kept in
plain files. Model, rows, their order, and threads are the same, so turn k of both arms trains the same rows.

Both arms are started once, and then take turns (`tests.benchmarks.arms`): a block is one turn of each, in an order
that alternates from block to block. To start each arm anew for a block would cost half a minute a turn, and minutes
lie between the two then; on a shared machine that measures the neighbours. `--null` puts the bare engine in both
places: what the method itself finds where there is no difference.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.arms import Arm, Turn, torchrun_with
from tests.benchmarks.paired import Ratio, load, report
from tests.benchmarks.scene import SEQ_LEN, WORLD, Scene
from warpbeam.data.prepare import prepare
from warpbeam.job import load_job
from warpbeam.pool import load_pool
from warpbeam.record.view import RunView
from warpbeam.storage import open_store
from warpbeam.storage.embedded import stop_server

ROWS = 4
SETTLE_STEPS = 10
SLACK_STEPS = 6  # in each turn: the warm ones, and those between the last counted one and the stop


def main() -> None:
    """Start both arms, let them take turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20, help="counted steps of a turn")
    parser.add_argument("--null", action="store_true", help="the bare engine in both places")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began_load = load()
    with tempfile.TemporaryDirectory(prefix="wb-bench-") as folder:
        os.environ["WARPBEAM_HOME"] = f"{folder}/home"
        scene = Scene(Path(folder))
        total = 2 * SETTLE_STEPS + options.blocks * (options.steps + SLACK_STEPS)
        open_store(load_pool(None).pool.storage_config())  # the S3 server, as a service of the machine
        try:
            turns = measure(scene, total, options)
            waits = [] if options.null else data_waits()
        finally:
            stop_server(Path(os.environ["WARPBEAM_HOME"]))
    whole, bare = turns["whole"], turns["bare"]
    ratios = [w.steps_per_s / b.steps_per_s for w, b in zip(whole, bare, strict=True)]
    tokens = ROWS * WORLD * SEQ_LEN
    details = {
        "load_before": round(began_load, 2),
        "whole_tokens_per_s": [round(turn.steps_per_s * tokens) for turn in whole],
        "bare_tokens_per_s": [round(turn.steps_per_s * tokens) for turn in bare],
        "whole: waiting for data, % of a step (median, worst)": [round(f(waits), 3) for f in (statistics.median, max)]
        if waits
        else None,
    }
    name = "bare / bare (what the method finds in nothing)" if options.null else "whole path / torchrun in memory"
    report([Ratio(name, ratios, goal=0.97, floor=0.95)], details, as_json=options.json)


def data_waits() -> list[float]:
    """Percent of each step that the whole path's loop waited for its next rows."""
    view = RunView(open_store(load_pool(None).pool.storage_config()), "bench", "whole")
    name = "time_metrics/data_loading(%)"
    return [float(row[name]) for row in view.all_metrics() if name in row and int(row["step"]) > SETTLE_STEPS]


def measure(scene: Scene, total: int, options: argparse.Namespace) -> dict[str, list[Turn]]:
    """One turn of each arm in each block."""
    arms: list[Arm] = []
    try:
        arms.append(start_bare(scene, "whole", total) if options.null else start_whole(scene, total))
        settle(arms[0])
        arms.append(start_bare(scene, "bare", total))
        settle(arms[1])
        turns: dict[str, list[Turn]] = {arm.name: [] for arm in arms}
        for block in range(options.blocks):
            for arm in arms if block % 2 == 0 else arms[::-1]:
                turns[arm.name].append(arm.turn(options.steps))
            now = {name: f"{done[-1].steps_per_s:.2f}" for name, done in turns.items()}
            print(f"block {block + 1}/{options.blocks}: steps/s {now}, load {load():.1f}", file=sys.stderr, flush=True)
        return turns
    finally:
        for arm in arms:
            arm.end()


def settle(arm: Arm) -> None:
    """Past the first steps, then wait for the first turn."""
    arm.wait_for(SETTLE_STEPS)
    arm.pause()


def start_whole(scene: Scene, total: int) -> Arm:
    """`warpbeam run`, as a user types it."""
    job = scene.job("whole", steps=total, rows=ROWS)
    command = [sys.executable, "-m", "warpbeam.cli.main", "run", str(job), "--yes"]
    return Arm("whole", command, scene.folder)


def start_bare(scene: Scene, name: str, total: int) -> Arm:
    """The engine under torchrun; its data is prepared before, and in memory before the first step."""
    job = scene.job(name, steps=total, rows=ROWS, recipe="tests.benchmarks.in_memory:train")
    return Arm(name, torchrun(scene, job), scene.folder)


def torchrun(scene: Scene, job: Path) -> list[str]:
    """Prepare the data in this process, and the command that trains on it."""
    loaded, pool = load_job(job), load_pool(str(scene.pool)).pool
    config = pool.storage_config()
    prepare(loaded.job, loaded.root, open_store(config), config, ray=False)
    return torchrun_with(Path(sys.executable), "-m", "warpbeam.train", str(job), "--pool", str(scene.pool))


if __name__ == "__main__":
    main()
