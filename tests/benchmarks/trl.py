"""Useful tokens/s beside TRL's `SFTTrainer`: `python -m tests.benchmarks.trl [--blocks 12] [--modes ...] [--json]`.

Useful are the tokens that carry loss; padding and prompts do not count. Same examples, model (the quickstart's),
world, ZeRO-3, rows of a rank and step, threads; ours is the bare engine under torchrun, TRL runs under torchrun in
`.venv-trl`, which is made here with uv on first use (`--python` names another). The arms take turns
(`tests.benchmarks.arms`).

TRL's modes are in `trl_sft.py`. Its best that keeps examples apart is the faster of `packed` (its own way: all rows of
a step end to end in one, so its dense mask is rows times rows as large) and `packed-single` (one row after the other).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.arms import Arm, Turn, torchrun_with
from tests.benchmarks.overhead import torchrun
from tests.benchmarks.paired import Ratio, load, report
from tests.benchmarks.scene import SEQ_LEN, WORLD, Scene

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "trl==1.16.0",
    "datasets==5.2.0",
    "peft==0.21.2",
    "deepspeed",
    "torch",
    "transformers",
    "accelerate",
    "ninja",
)
ROWS = 4
SETTLE_STEPS = 6
SLACK_STEPS = 6
OURS = "warpbeam"


def main() -> None:
    """Start all arms, let them take turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=15, help="counted steps of a turn")
    parser.add_argument("--modes", nargs="+", default=["default", "packed", "packed-single"])
    parser.add_argument("--python", type=Path, help="of an environment that has TRL")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    python, began_load = options.python or make_environment(ROOT / ".venv-trl"), load()
    with tempfile.TemporaryDirectory(prefix="wb-bench-") as folder:
        os.environ["WARPBEAM_HOME"] = f"{folder}/home"
        turns = measure(Scene(Path(folder)), python, options)
    rates = {name: [turn.loss_tokens_per_s for turn in done] for name, done in turns.items()}
    apart = [mode for mode in options.modes if mode != "default"]
    best = max(apart, key=lambda mode: statistics.median(rates[mode]), default=None)
    goals = {"default": 1.5, best: 1.0}
    ratios = [
        Ratio(
            f"warpbeam / TRL {mode}{' (its best that keeps apart)' if mode == best else ''}",
            [ours / theirs for ours, theirs in zip(rates[OURS], rates[mode], strict=True)],
            goal=goals.get(mode),
        )
        for mode in options.modes
    ]
    details: dict[str, object] = {"load_before": round(began_load, 2)}
    details |= {f"{name}, loss tokens/s": [round(rate) for rate in values] for name, values in rates.items()}
    details |= {f"{name}, loss tokens a step": round(per_step(done)) for name, done in turns.items()}
    report(ratios, details, as_json=options.json)


def per_step(turns: list[Turn]) -> float:
    """Useful tokens of the mean step."""
    return sum(turn.loss_tokens for turn in turns) / sum(turn.steps for turn in turns)


def measure(scene: Scene, python: Path, options: argparse.Namespace) -> dict[str, list[Turn]]:
    """One turn of each arm in each block, in an order that rotates."""
    total = 2 * SETTLE_STEPS + options.blocks * (options.steps + SLACK_STEPS)
    arms: list[Arm] = []
    try:
        for name in (OURS, *options.modes):
            arms.append(start_ours(scene, total) if name == OURS else start_trl(scene, python, name, total))
            arms[-1].wait_for(SETTLE_STEPS)
            arms[-1].pause()
            print(f"{name} trains", file=sys.stderr, flush=True)
        turns: dict[str, list[Turn]] = {arm.name: [] for arm in arms}
        for block in range(options.blocks):
            first = block % len(arms)
            for arm in (arms[first:] + arms[:first])[:: 1 if (block // len(arms)) % 2 == 0 else -1]:
                turns[arm.name].append(arm.turn(options.steps))
            now = {name: round(done[-1].loss_tokens_per_s) for name, done in turns.items()}
            print(f"block {block + 1}/{options.blocks}: {now}, load {load():.1f}", file=sys.stderr, flush=True)
        return turns
    finally:
        for arm in arms:
            arm.end()


def start_ours(scene: Scene, total: int) -> Arm:
    """The bare engine with its own reader."""
    return Arm(OURS, torchrun(scene, scene.job("ours", steps=total, rows=ROWS)), scene.folder)


def start_trl(scene: Scene, python: Path, mode: str, total: int) -> Arm:
    """TRL under torchrun."""
    out = scene.folder / f"arm-{mode}"
    given = {"data": scene.data, "tokenizer": scene.tokenizer, "model": scene.config, "mode": mode, "out": out}
    given |= {"rows": ROWS, "seq-len": SEQ_LEN, "steps": total}
    options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    script = str(Path(__file__).with_name("trl_sft.py"))
    command = torchrun_with(python, script, *options)
    files = [f"steps-{rank}.jsonl" for rank in range(WORLD)]
    safe = {"PYTHONSAFEPATH": "1"}  # this file has the name of their package
    return Arm(mode, command, scene.folder, files=files, environment=safe)


def make_environment(folder: Path) -> Path:
    """The Python of an environment with TRL, on our pins; made once."""
    python, done = folder / "bin" / "python", folder / ".made"
    if not done.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--allow-existing", str(folder)], check=True)
        constraints = str(ROOT / "constraints.txt")
        subprocess.run([uv, "pip", "install", "--quiet", "-p", str(python), "-c", constraints, *PACKAGES], check=True)
        done.touch()
    return python


if __name__ == "__main__":
    main()
