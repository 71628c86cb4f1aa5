"""The bare engine on two real processes: every layout gives the same loss, and a kill -9 costs nothing but time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from warpbeam.checkpoint.export import export_model
from warpbeam.checkpoint.log import RunLog
from warpbeam.data.dataset import Waiting, open_dataset
from warpbeam.data.prepare import prepare
from warpbeam.data.reader import EvalReader
from warpbeam.job import load_job
from warpbeam.storage import StorageConfig
from warpbeam.storage.local import LocalStore

REPOSITORY = Path(__file__).parents[2]
EXACT = ("loss_metrics/global_avg_loss", "grad_norm", "lr", "loss_tokens")
JOB = """\
schema: warpbeam/job/v1
name: {name}
{extra}
model:
  config: {{model_type: qwen2, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
    intermediate_size: 64, max_position_embeddings: 128, tie_word_embeddings: true, attention_dropout: {dropout}}}
  tokenizer: {{train: {{vocab_size: 400}}}}
data:
  train: [{{path: train.jsonl}}]
  eval: [{{path: eval.jsonl}}]
  seq_len: 64
train: {{method: sft, max_steps: 12, global_batch: 4, lr: 3e-3, warmup: 3, seed: 3}}
parallelism: {{strategy: {strategy}, micro_batch: 1}}
resources: {{accelerators: 2}}
checkpoint: {{every_steps: 4}}
"""
POOL = """\
schema: warpbeam/pool/v1
name: test
accelerator: {{kind: cpu, memory_gib: 4}}
nodes: 1
accelerators_per_node: 2
cpus_per_worker: 0.5
local_disk: {folder}/disk
storage: {{kind: local, uri: "file://{folder}/store"}}
"""


class Place:
    """A folder with jobs, their data, a pool and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pool.yaml").write_text(POOL.format(folder=folder))
        self.store = LocalStore(folder / "store")
        self.said = ""
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "WARPBEAM_HOME": str(folder / "home"),
            "WARPBEAM_POOL": str(folder / "pool.yaml"),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONWARNINGS": "ignore",
        }

    def job(self, name: str, *, strategy: str = "zero3", dropout: float = 0.1, extra: str = "") -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(JOB.format(name=name, strategy=strategy, dropout=dropout, extra=extra))
        return path

    def start(self, *arguments: str, ranks: int = 2, log: str = "out.txt") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "-m", *arguments]
        with (self.folder / log).open("wb") as output:
            return subprocess.Popen(
                command, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT, env=self.environment
            )

    def run(self, *arguments: str, ranks: int = 2) -> str:
        process = self.start(*arguments, ranks=ranks)
        code = process.wait(240)
        text = (self.folder / "out.txt").read_text()
        assert code == 0, text
        return text

    def rows(self, run: str) -> dict[int, dict[str, Any]]:
        """By step, over all attempts; a later attempt's row wins."""
        found: dict[int, dict[str, Any]] = {}
        for path in sorted((self.folder / f"store/teams/default/runs/{run}/record").glob("*/metrics/rank-0/*.jsonl")):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                found.setdefault(row["step"], {}).update(row)
        return found

    def log(self, run: str) -> RunLog:
        return RunLog(self.store, "default", run)


def numbers(rows: dict[int, dict[str, Any]]) -> dict[int, list[Any]]:
    return {step: [row[name] for name in EXACT] for step, row in rows.items() if EXACT[0] in row}


def conversation(number: int) -> str:
    words = " ".join(str((number * k) % 97) for k in range(1, 2 + number % 9))
    turns = [("user", f"Count {number}"), ("assistant", words)]
    return json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The data, prepared once, and the undisturbed runs that others are compared with."""
    place = Place(tmp_path_factory.mktemp("engine"))
    for name, lines in (("train", range(400)), ("eval", range(400, 437))):
        (place.folder / f"{name}.jsonl").write_text("".join(conversation(n) + "\n" for n in lines))
    config = StorageConfig(uri=f"file://{place.folder}/store", kind="local")
    reference = load_job(place.job("whole"))
    os.environ["WARPBEAM_HOME"], before = place.environment["WARPBEAM_HOME"], os.environ.get("WARPBEAM_HOME", "")
    for split in ("train", "eval"):
        prepare(reference.job, reference.root, place.store, config, split=split, ray=False)  # type: ignore[arg-type]
    os.environ["WARPBEAM_HOME"] = before
    shutil.copy(REPOSITORY / "jobs/own_loop/train.py", place.folder / "own_train.py")
    own = 'recipe: "own_train:train"'
    place.job("own-whole", extra=own)
    place.job("own-cut", extra=own + '\ncode: {callbacks: ["tests.integration.engine_runs:StopAfterSix"]}')
    unprepared = place.job("unprepared")
    unprepared.write_text(unprepared.read_text().replace("seq_len: 64", "seq_len: 32"))
    jobs = ("whole", "own-whole", "own-cut", "own-cut", "whole", "unprepared")
    place.said = place.run("tests.integration.engine_runs", *(f"{name}.yaml" for name in jobs))
    return place


def test_every_layout_gives_the_loss_norm_and_weights_of_one_plain_process(tmp_path: Path) -> None:
    Place(tmp_path).run("tests.integration.engine_layouts", str(tmp_path))
    found = json.loads((tmp_path / "layouts.json").read_text())
    for name, (ours, plain) in found["loss"].items():
        bf16 = name.endswith("bf16")
        for (loss, norm), (plain_loss, plain_norm) in zip(ours, plain, strict=True):
            assert loss == pytest.approx(plain_loss, rel=1e-2 if bf16 else 2e-6), name
            assert norm == pytest.approx(plain_norm, rel=5e-2 if bf16 else 1e-5), name
    assert len(found["loss"]) == 13
    assert all(worst < 2e-5 for worst in found["weights"].values()), found["weights"]
    assert all(worst == 0.0 for worst in found["state"].values()), found["state"]
    assert len(found["state"]) == 4 + 4 * 5


@pytest.fixture(scope="module")
def killed(place: Place) -> Place:
    """All processes of a run killed after a checkpoint, in the middle of a step; with a copy of its store."""
    place.job("killed")
    process = place.start("warpbeam.train", "killed.yaml", log="killed.txt")
    deadline = time.monotonic() + 240
    while "step 4: checkpoint" not in (place.folder / "killed.txt").read_text():
        assert process.poll() is None, (place.folder / "killed.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout.split()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline, "ranks outlive a launcher that was killed"
        time.sleep(0.05)
    assert place.log("killed").state()[0] == "running"
    shutil.copytree(place.folder / "store", place.folder / "other" / "store")
    return place


def test_killed_in_the_middle_and_resumed_equals_undisturbed_bitwise(killed: Place) -> None:
    text = killed.run("warpbeam.train", "killed.yaml")
    assert "from step 4" in text or "from step 8" in text
    assert killed.log("killed").state()[0] == "done"
    resumed, whole = numbers(killed.rows("killed")), numbers(killed.rows("whole"))
    assert {step: resumed[step] for step in resumed} == {step: whole[step] for step in resumed}
    assert set(range(9, 13)) <= set(resumed)


def test_another_strategy_at_another_world_goes_on_within_rounding(killed: Place) -> None:
    """The copy of the killed run's store: written by zero3 on two ranks, read by zero1 on one."""
    other = Place(killed.folder / "other")
    for name in ("train.jsonl", "eval.jsonl"):
        shutil.copy2(killed.folder / name, other.folder / name)
    config = StorageConfig(uri=f"file://{other.folder}/store", kind="local")
    job = load_job(other.job("killed", strategy="zero1"))
    for split in ("train", "eval"):  # the same bytes under another path are another source
        prepare(job.job, job.root, other.store, config, split=split, ray=False)  # type: ignore[arg-type]
    other.run("warpbeam.train", "killed.yaml", "--allow", "parallelism.strategy", ranks=1)
    rows, whole = other.rows("killed"), killed.rows("whole")
    for step in (9, 12):
        assert rows[step]["loss_tokens"] == whole[step]["loss_tokens"]
        assert rows[step]["lr"] == whole[step]["lr"]
    # Ranks draw their own dropout, so only the layout's own rounding and dropout may differ.
    ours, theirs = (side[12]["validation_metrics/loss"] for side in (rows, whole))
    assert ours == pytest.approx(theirs, rel=2e-2)


def test_own_fsdp2_loop_resumes_bitwise(place: Place) -> None:
    cut, whole = place.rows("own-cut"), place.rows("own-whole")
    assert numbers(cut) == numbers(whole)
    assert sorted(numbers(cut)) == list(range(1, 13))
    states = [entry.extra["state"] for entry in place.log("own-cut").read() if entry.kind == "state"]
    assert states == ["running", "stopped", "running", "done"]


def test_held_out_loss_equals_a_plain_loop_on_the_export(place: Place) -> None:
    exported = export_model(place.store, "default", "whole", "last", precision="fp32")
    model = AutoModelForCausalLM.from_pretrained(place.folder / "store" / exported.prefix, dtype=torch.float32).eval()
    prefix = json.loads((place.folder / "store" / exported.prefix / "lineage.json").read_text())
    assert prefix["step"] == 12
    facts = next((place.folder / "store/teams/default/runs/whole/record").glob("*/attempt.json"))
    assert json.loads(facts.read_text())["plan"]["strategy"] == "zero3"
    dataset = next(
        data
        for data in (open_dataset(place.store, f"teams/default/data/{path.name}") for path in data_folders(place))
        if data.wait_complete(Waiting()).total_loss_tokens == place.rows("whole")[12]["validation_metrics/loss_tokens"]
    )
    total, tokens = 0.0, 0
    with torch.no_grad(), EvalReader(dataset, 0, 1, 1, place.folder / "plain") as reader:
        for rows in reader:
            starts = [*(rows["position_ids"][0] == 0).nonzero()[0].tolist(), rows["input_ids"].shape[1]]
            for start, end in pairwise(starts):
                ids = torch.from_numpy(rows["input_ids"][:, start:end])
                labels = torch.from_numpy(rows["labels"][:, start:end])[:, 1:].flatten()
                logits = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
                total += float(functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum"))
                tokens += int((labels != -100).sum())
    row = place.rows("whole")[12]
    assert tokens == row["validation_metrics/loss_tokens"]
    assert total / tokens == pytest.approx(row["validation_metrics/loss"], rel=1e-5)


def test_a_warm_start_in_pieces_begins_with_the_loss_that_the_export_has(place: Place) -> None:
    """ZeRO-3 cuts a model that has weights already up at birth, on two ranks."""
    exported = export_model(place.store, "default", "whole", "last", precision="fp32")
    path = place.job("warm", dropout=0.0)
    text = path.read_text()
    begin, end = text.index("  config:"), text.index("data:")
    path.write_text(f"{text[:begin]}  path: {place.folder / 'store' / exported.prefix}\n{text[end:]}")
    config, job = StorageConfig(uri=f"file://{place.folder}/store", kind="local"), load_job(path)
    for split in ("train", "eval"):
        prepare(job.job, job.root, place.store, config, split=split, ray=False)  # type: ignore[arg-type]
    place.run("warpbeam.train", "warm.yaml")
    assert place.rows("warm")[0]["validation_metrics/loss"] == pytest.approx(
        place.rows("whole")[12]["validation_metrics/loss"], rel=1e-5
    )


def data_folders(place: Place) -> list[Path]:
    return [path for path in (place.folder / "store/teams/default/data").iterdir() if (path / "index.json").exists()]


def test_what_the_command_says_at_the_end(place: Place) -> None:
    exports = [line for line in place.said.splitlines() if line.startswith("  $ warpbeam export ")]
    assert len(exports) == 3, "what to do next, after each run that is done"
    lines = [line for line in place.said.splitlines() if line not in exports]
    ends = [lines[at - 1] for at, line in enumerate(lines) if line.startswith("exit code") and line.endswith(": 0")]
    assert ends == [
        "done: 12 steps",
        "done: 12 steps",
        "stopped after step 6, with a checkpoint; the same command goes on from there",
        "done: 12 steps",
        "this run is finished already: nothing to do (--fresh trains it anew)",
    ]


def test_data_that_is_not_prepared_is_said_with_the_command(place: Place) -> None:
    assert "exit code of unprepared: 2" in place.said
    assert "error: the train data of unprepared.yaml is not prepared" in place.said
    assert "fix: warpbeam data prepare unprepared.yaml" in place.said
    assert "Traceback" not in place.said


def test_the_gpu_script_runs_where_only_torch_and_transformers_are() -> None:
    """A GPU machine without Ray, DeepSpeed and the rest: the same script, small, on a CPU."""
    missing = ["ray", "deepspeed", "pydantic", "boto3", "psutil", "ruamel", "typer", "rich", "pyarrow", "ninja"]
    script = REPOSITORY / "tests/gpu/bench_engine.py"
    program = (
        f"import sys, runpy\nsys.modules.update(dict.fromkeys({missing!r}))\n"
        "sys.argv = ['bench_engine.py', '--tiny', '--steps', '4']\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY / "platform")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout.strip().rpartition("\n")[2])
    assert verdict["faults"] == []
    assert verdict["ways"][0]["kernel"] == "sdpa-per-example"
