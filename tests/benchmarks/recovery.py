"""From the SIGKILL of a rank to the next optimizer step: `python -m tests.benchmarks.recovery [--pairs 3] [--json]`.

A run of `warpbeam run` beside the naive script with the checkpoints and retries of Ray Train's guide
(`naive_recovery.py`): same data, tokenizer, model, world, rows, ZeRO-3, and a checkpoint every EVERY steps. Each arm of
a pair trains past its second checkpoint and for SETTLE_S, then rank 1 is killed, KILLS times; a pair's arms follow each
other in an order that alternates. Ours asks for spare workers and has them by then. Two moments are
measured: the first step of the new ranks, and the first step that is new.

Ours is split at what the run's record tells:

    detect     until the driver had noticed (event `failed`)
    restart    until every new rank had said that it is there; the pause before a retry is in it
    restore    until the state was back and proven (rank 0's `model_ready`)
    step       the first batch and the first step
    recompute  until a step that had not been taken before

Then, in this process, what a change of the world size costs: a state saved by two ranks and restored by one, and the
other way round, in seconds for each GB.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from tests.benchmarks.checkpoint import State
from tests.benchmarks.paired import Ratio, load, report
from tests.benchmarks.scene import Scene
from tests.benchmarks.step_clock import VARIABLE
from warpbeam.checkpoint.log import RunLog
from warpbeam.checkpoint.members import this_process
from warpbeam.checkpoint.pieces import Piece, Range
from warpbeam.checkpoint.restore import open_checkpoint
from warpbeam.checkpoint.save import CheckpointSave, TrainState
from warpbeam.pool import load_pool
from warpbeam.record.view import RunView
from warpbeam.storage import open_store

EVERY = 10
KILLS = 2
SETTLE_S = 40.0
SPARES_AFTER_S = 5.0
ROWS = 8  # of a rank, as in naive_ray.py
TIMEOUT_S = 400.0
RESHARD_MB = 256


@dataclass(frozen=True)
class Step:
    """One step of rank 0."""

    number: int
    at: float
    pid: int


@dataclass(frozen=True)
class Recovery:
    """Seconds after a kill."""

    first_step_s: float
    new_step_s: float
    killed_at: float


class Arm:
    """A command that trains for ever, watched by the file of its steps."""

    def __init__(self, command: list[str], environment: dict[str, str], steps: Callable[[], list[Step]]) -> None:
        self.steps = steps
        scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (as long as the arm)
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, env={**os.environ, "PATH": scripts, **environment}
        )

    def kill_and_wait(self, rank_pid: Callable[[], int]) -> Recovery:
        """Once two checkpoints have been passed by the newest ranks: kill one, and wait for a step that is new."""
        newest = self._until(lambda: self._settled())
        os.kill(rank_pid(), signal.SIGKILL)
        killed_at = time.time()

        def after() -> tuple[Step, Step] | None:
            steps = self.steps()
            last = max(step.number for step in steps if step.pid == newest.pid)
            fresh = [step for step in steps if step.at > killed_at and step.pid != newest.pid]
            beyond = [step for step in fresh if step.number > last]
            return (fresh[0], beyond[0]) if beyond else None

        first, new = self._until(after)
        return Recovery(first.at - killed_at, new.at - killed_at, killed_at)

    def end(self) -> None:
        """With everything that it started."""
        processes = [*psutil.Process(self._process.pid).children(recursive=True), psutil.Process(self._process.pid)]
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait()

    def _settled(self) -> Step | None:
        steps = self.steps()
        own = [step for step in steps if step.pid == steps[-1].pid]
        saved = (own[0].number // EVERY + 2) * EVERY + EVERY // 2 if own else 0
        long_enough = own and own[-1].at - own[0].at > SETTLE_S
        return own[-1] if long_enough and own[-1].number >= saved else None

    def _until(self, what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if found := what():
                return found
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        self._log.seek(0)
        raise SystemExit(f"the arm does not go on:\n{self._log.read()[-4000:]}")


def main() -> None:
    """Pairs, then the split, the ratios and the resharding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ours: list[Recovery] = []
    naive: list[Recovery] = []
    parts: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="wb-bench-") as folder:
        os.environ |= {"WARPBEAM_HOME": f"{folder}/home", "OMP_NUM_THREADS": "1"}
        scene = Scene(Path(folder))
        try:
            for pair in range(options.pairs):
                for arm in ("ours", "naive") if pair % 2 == 0 else ("naive", "ours"):
                    if arm == "ours":
                        found, split = recover_ours(scene, pair)
                        ours, parts = ours + found, parts + split
                    else:
                        naive += recover_naive(scene, pair)
                last = f"ours {ours[-1].first_step_s:.1f} s, naive {naive[-1].first_step_s:.1f} s, load {load():.1f}"
                print(f"pair {pair + 1}/{options.pairs}: {last}", file=sys.stderr, flush=True)
            reshard = reshard_s_per_gb(Path(folder))
        finally:
            subprocess.run([sys.executable, "-m", "warpbeam.cli.main", "down"], capture_output=True, check=False)
    details: dict[str, Any] = {
        "parts_s (medians of ours)": {n: round(statistics.median(one[n] for one in parts), 2) for n in parts[0]},
        "reshard, s for each GB": reshard,
    }
    for name, arm_found in (("ours", ours), ("naive", naive)):
        details[f"{name}_first_step_s"] = [round(one.first_step_s, 1) for one in arm_found]
        details[f"{name}_new_step_s"] = [round(one.new_step_s, 1) for one in arm_found]
    pairs = list(zip(ours, naive, strict=True))
    ratios = [
        Ratio("to the next step, ours / naive", [a.first_step_s / b.first_step_s for a, b in pairs], 0.5, at_most=True),
        Ratio("to a step that is new, ours / naive", [a.new_step_s / b.new_step_s for a, b in pairs], at_most=True),
    ]
    report(ratios, details, as_json=options.json)


def recover_ours(scene: Scene, number: int) -> tuple[list[Recovery], list[dict[str, float]]]:
    """Seconds of each kill, and their parts."""
    name = f"recovery-{number}"
    job = scene.job(name, steps=1_000_000, rows=ROWS, train={"spares_after_s": SPARES_AFTER_S})
    with job.open("a") as file:
        file.write(f"checkpoint: {{every_steps: {EVERY}, keep: 2}}\n")
    file_of_steps = scene.folder / f"{name}.steps"
    view = RunView(open_store(load_pool(None).pool.storage_config()), "bench", name)
    command = [sys.executable, "-m", "warpbeam.cli.main", "run", str(job), "--yes"]
    arm = Arm(command, {VARIABLE: str(file_of_steps)}, lambda: read_steps(file_of_steps))

    def rank_pid() -> int:
        beat, _ = view.heartbeats(view.attempts()[-1])["rank-1"]
        return int(beat["pid"])

    try:
        found = [arm.kill_and_wait(rank_pid) for _ in range(KILLS)]
    finally:
        arm.end()
    return found, [parts_of(view, attempt + 1, one) for attempt, one in enumerate(found)]


def parts_of(view: RunView, attempt: int, found: Recovery) -> dict[str, float]:
    """The recovery's parts in seconds; `attempt` is the number of the one that was started by it."""
    before, after = view.attempts()[attempt - 1 : attempt + 1]
    noticed = next(float(e["at"]) for e in view.events(before) if e["kind"] == "failed")
    events = view.events(after)
    up = next(float(e["at"]) for e in events if e["kind"] == "reached" and e["what"] == "workers")
    ready = next(float(e["at"]) for e in events if e["kind"] == "model_ready" and e["who"] == "rank-0")
    marks = {
        "detect": noticed - found.killed_at,
        "restart": up - found.killed_at,
        "restore": ready - found.killed_at,
        "step": found.first_step_s,
        "recompute": found.new_step_s,
    }
    parts, at = {}, 0.0
    for name, mark in marks.items():
        parts[name], at = max(0.0, mark - at), max(at, mark)
    return parts


def recover_naive(scene: Scene, number: int) -> list[Recovery]:
    """Seconds of each kill."""
    steps = scene.folder / f"naive-{number}.steps"
    given = [str(scene.data), str(scene.tokenizer), str(scene.config), str(EVERY), str(steps)]
    arm = Arm(
        [sys.executable, "-m", "tests.benchmarks.naive_recovery", *given],
        {},
        lambda: read_steps(Path(f"{steps}.0")),
    )
    try:
        return [arm.kill_and_wait(lambda: read_steps(Path(f"{steps}.1"))[-1].pid) for _ in range(KILLS)]
    finally:
        arm.end()


def read_steps(path: Path) -> list[Step]:
    """Whole lines of the file."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [Step(int(line["step"]), float(line["wall"]), int(line["pid"])) for line in lines]


def reshard_s_per_gb(folder: Path) -> dict[str, float]:
    """`2 -> 1`, `1 -> 2`: seconds for each GB of state, from the embedded S3 server into tensors."""
    store = open_store(load_pool(None).pool.storage_config())
    state = State(RESHARD_MB)
    gigabytes = sum(4 * tensor.numel() for tensor in state.tensors.values()) / 1e9
    found = {}
    for before, after in ((2, 1), (1, 2)):
        run = f"reshard-{before}-{after}"
        save_at(store, run, state, before, folder)
        began = time.perf_counter()
        for rank in range(after):
            with open_checkpoint(store, "bench", run, cache_dir=folder / run) as reader:
                wanted = [part(piece, rank, after) for piece in state.tensors]
                reader.fetch(wanted)
                for piece in wanted:
                    reader.read(piece)
        found[f"{before} -> {after}"] = round((time.perf_counter() - began) / gigabytes, 2)
    return found


def save_at(store: Any, run: str, state: State, world: int, folder: Path) -> None:
    """A checkpoint as so many ranks write it, one after the other in this process."""
    claim = RunLog(store, "bench", run).claim("0001-bench", [this_process("driver")])
    saves = []
    for rank in range(world):
        pieces = [(part(p, rank, world), cut(t, part(p, rank, world))) for p, t in state.tensors.items()]
        saves.append(
            CheckpointSave(store, claim, step=1, rank=rank, pieces=pieces, state=TrainState(), tmp=folder / "shards")
        )
    told: list[Any] = []
    for save in saves[1:]:
        save.collect(lambda mine: told.append(mine))
    saves[0].collect(lambda mine: [mine, *told])
    saves[0].outcome(lambda fate: fate)


def part(piece: Piece, rank: int, world: int) -> Piece:
    """The rank's share of a whole tensor, as ZeRO cuts it."""
    numel = piece.numel
    return Piece(piece.name, piece.kind, piece.shape, Range(numel * rank // world, numel * (rank + 1) // world))


def cut(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    assert isinstance(piece.index, Range)
    return tensor.view(-1)[piece.index.a : piece.index.b]


if __name__ == "__main__":
    main()
