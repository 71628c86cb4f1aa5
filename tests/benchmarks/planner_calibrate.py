"""Does the first run predict the second? `python -m tests.benchmarks.planner_calibrate` (`make bench-calibrate`).

Runs the quickstart's model on this machine's CPUs, calibrates with it, plans a second run and runs that too: predicted
within 10% of its memory and 15% of its time. A third run with another micro-batch and strategy is reported beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.scene import Scene
from warpbeam.launch.calibrate import measure
from warpbeam.pool import load_pool
from warpbeam.record.view import find_run
from warpbeam.storage import open_store

MEMORY_BAR, TIME_BAR = 0.10, 0.15
STEPS = 40
ROOT = Path(__file__).parents[2]


def warpbeam(scene: Scene, *words: str) -> str:
    """The command, as a user types it; its output."""
    environment = os.environ | {"WARPBEAM_HOME": str(scene.folder / "home"), "WARPBEAM_POOL": str(scene.pool)}
    command = [sys.executable, "-m", "warpbeam.cli.main", *words]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def job_file(scene: Scene, name: str, *, steps: int, rows: int, strategy: str) -> Path:
    """A job like the quickstart's."""
    path = scene.job(name, steps=steps, rows=rows)
    content = yaml.safe_load(path.read_text())
    del content["code"]  # other benchmarks' clock
    content["parallelism"]["strategy"] = strategy
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def planned(scene: Scene, job: Path) -> dict[str, float]:
    """What `warpbeam plan` says of a job: seconds of a step, GiB of a rank."""
    found: Mapping[str, Any] = json.loads(warpbeam(scene, "plan", str(job), "--json"))
    return {"step_s": found["step_time_s"]["total"], "peak_gib": found["memory_per_gpu_gib"]["total"]}


def run(scene: Scene, job: Path) -> dict[str, float]:
    """Run it, and read from its record what calibration reads."""
    warpbeam(scene, "run", str(job), "--yes")
    store = open_store(load_pool(scene.pool).pool.storage_config())
    view = find_run(store, job.stem)
    found = measure(view, view.attempts()[-1], context_gib=0.0)
    return {"step_s": found.step_s, "peak_gib": found.peak_gib}


def main() -> None:
    """Print prediction beside measurement; exit with 1 where the second run is off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warpbeam-calibrate-") as folder:
        scene = Scene(Path(folder))
        first = job_file(scene, "first", steps=asked.steps, rows=4, strategy="zero3")
        uncalibrated = planned(scene, first)
        lines = {"first": {"predicted": uncalibrated, "measured": run(scene, first)}}
        warpbeam(scene, "calibrate", "first")
        for name, rows, strategy in (("second", 4, "zero3"), ("third", 8, "zero1")):
            job = job_file(scene, name, steps=asked.steps, rows=rows, strategy=strategy)
            lines[name] = {"predicted": planned(scene, job), "measured": run(scene, job)}
    for line in lines.values():
        line["error"] = {key: line["predicted"][key] / line["measured"][key] - 1 for key in ("step_s", "peak_gib")}
    off = lines["second"]["error"]
    passes = abs(off["peak_gib"]) <= MEMORY_BAR and abs(off["step_s"]) <= TIME_BAR
    if asked.json:
        print(json.dumps(lines | {"passes": passes}, indent=2))
    else:
        show(lines)
        print("passes" if passes else "does not pass")
    raise SystemExit(0 if passes else 1)


def show(lines: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """A table."""
    print(f"{'':8}{'step s':>26}{'GiB a rank':>30}")
    for name, line in lines.items():
        cells = [
            f"{line['predicted'][key]:8.3f} -> {line['measured'][key]:7.3f} ({line['error'][key]:+6.1%})"
            for key in ("step_s", "peak_gib")
        ]
        print(f"{name:8}{cells[0]:>30}{cells[1]:>30}")


if __name__ == "__main__":
    main()
