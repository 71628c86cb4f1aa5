"""From the command to the first optimizer step: `python -m tests.benchmarks.startup [--pairs 4] [--json]`.

`warpbeam run` beside what a competent person writes first with the same libraries (`naive_ray.py`): same data, never
prepared before, tokenizer, model, world, rows, ZeRO-3, and no evaluation. Every pair starts both anew, one after the
other, in an order that alternates. The storage server runs already: it is a service, and the script needs none.

Our time is split at the moments that the run's record tells:

    command   the command line, the plan, the store, the claim
    ray       until Ray could be used
    workers   until every rank had said that it is there
    data      until the first rows were sealed and the ranks had the word (0 when that was before the workers)
    engine    until the model was built, sharded and proven (rank 0's `model_ready`)
    step      the first batch and the first optimizer step

On a machine that others load, compare the CPU seconds: they hardly depend on the neighbours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.benchmarks.paired import Ratio, load, report
from tests.benchmarks.scene import Scene
from tests.benchmarks.step_clock import VARIABLE
from warpbeam.pool import load_pool
from warpbeam.record.view import RunView
from warpbeam.storage import open_store

ROWS = 8  # of a rank, as in naive_ray.py
STEPS = 3
TIMEOUT_S = 600.0


def main() -> None:
    """Pairs, then the split and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began_load = load()
    ours: list[dict[str, float]] = []
    naive: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="wb-bench-") as folder:
        os.environ |= {"WARPBEAM_HOME": f"{folder}/home", "OMP_NUM_THREADS": "1"}
        scene = Scene(Path(folder))
        open_store(load_pool(None).pool.storage_config())
        try:
            for pair in range(-1, options.pairs):  # the one before the first is not counted: caches, DeepSpeed's builds
                for arm in ("ours", "naive") if pair % 2 == 0 else ("naive", "ours"):
                    data = Path(shutil.copytree(scene.data, scene.folder / f"{arm}-{pair + 1}"))
                    if arm == "ours":
                        ours.append(start_ours(scene, data, pair + 1))
                    else:
                        naive.append(start_naive(scene, data))
                if pair < 0:
                    print("warm-up pair done, not counted", file=sys.stderr, flush=True)
                    ours.clear()
                    naive.clear()
                    continue
                last = f"ours {ours[-1]['total']:.1f} s, naive {naive[-1]['total']:.1f} s, load {load():.1f}"
                print(f"pair {pair + 1}/{options.pairs}: {last}", file=sys.stderr, flush=True)
        finally:
            subprocess.run([sys.executable, "-m", "warpbeam.cli.main", "down"], capture_output=True, check=False)
    parts = {name: round(statistics.median(one[name] for one in ours), 2) for name in ours[0]}
    details: dict[str, object] = {"load_before": round(began_load, 2), "parts_s (medians of ours)": parts}
    for name, arm in (("ours", ours), ("naive", naive)):
        details |= {f"{name}_{what}_s": [round(one[what], 1) for one in arm] for what in ("total", "cpu")}
    ratios = [
        Ratio(title, [mine[what] / theirs[what] for mine, theirs in zip(ours, naive, strict=True)], goal, at_most=True)
        for title, what, goal in [
            ("start-up, warpbeam run / naive script", "total", 0.7),
            ("CPU seconds until then, of all processes", "cpu", None),
        ]
    ]
    report(ratios, details, as_json=options.json)


def start_ours(scene: Scene, data: Path, number: int) -> dict[str, float]:
    """Run the command once; seconds of each part."""
    job = scene.job(f"startup-{number}", steps=STEPS, rows=ROWS, data=data)
    steps = scene.folder / f"steps-{number}.jsonl"
    began_at = time.time()
    command = [sys.executable, "-m", "warpbeam.cli.main", "run", str(job), "--json", "--yes"]
    out, cpu_s = run(command, {VARIABLE: str(steps)}, steps)
    timeline: dict[str, float] = json.loads(out[out.index("{") :])["timeline_s"]
    view = RunView(open_store(load_pool(None).pool.storage_config()), "bench", f"startup-{number}")
    attempt = view.attempts()[-1]
    ready = next(e["at"] for e in view.events(attempt) if e["kind"] == "model_ready" and e["who"] == "rank-0")
    first = json.loads(steps.read_text().splitlines()[0])["wall"]
    marks = {
        "command": view.facts(attempt)["at"] - began_at,
        "ray": timeline["ray"],
        "workers": timeline["workers"],
        "data": timeline["data"],
        "engine": ready - began_at,
        "step": first - began_at,
    }
    parts, before = {}, 0.0
    for name, at in marks.items():
        parts[name], before = max(0.0, at - before), max(before, at)
    return {**parts, "total": first - began_at, "cpu": cpu_s}


def start_naive(scene: Scene, data: Path) -> dict[str, float]:
    """Run the script once; seconds to its first step."""
    out = scene.folder / f"{data.name}.json"
    given = [str(data), str(scene.tokenizer), str(scene.config), str(STEPS), str(out)]
    began_at = time.time()
    _, cpu_s = run([sys.executable, "-m", "tests.benchmarks.naive_ray", *given], {}, out)
    return {"total": json.loads(out.read_text())["first_step_at"] - began_at, "cpu": cpu_s}


def run(command: list[str], environment: dict[str, str], first_step: Path) -> tuple[str, float]:
    """What the command printed, and the CPU seconds that all its processes had used when `first_step` was written."""
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": scripts, **environment}
    cpu_s, deadline = 0.0, time.monotonic() + TIMEOUT_S
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
        while process.poll() is None and time.monotonic() < deadline:
            if not cpu_s and first_step.exists() and first_step.stat().st_size:
                cpu_s = tree_cpu_s(psutil.Process(process.pid))
            time.sleep(0.1)
        failed = process.poll() != 0
        process.kill()
        process.wait()
        out.seek(0)
        errors.seek(0)
        printed = out.read()
        if failed:
            raise SystemExit(f"{' '.join(command)}:\n{printed[-3000:]}\n{errors.read()[-3000:]}")
    return printed, cpu_s


def tree_cpu_s(root: psutil.Process) -> float:
    """Of a process, those below it, and the ended ones that they have waited for."""
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # own and waited-for children's, in user and system mode
    return total


if __name__ == "__main__":
    main()
