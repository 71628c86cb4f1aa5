"""A tiny job and a way to run the command line as a user does: a process of its own, its output in a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warpbeam.record.view import RunView
from warpbeam.storage import StorageConfig, open_store

JOB = """\
schema: warpbeam/job/v1
name: {name}
team: launch
model:
  config: {{model_type: qwen2, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1,
    intermediate_size: 64, max_position_embeddings: 128, tie_word_embeddings: true}}
  tokenizer: {{train: {{vocab_size: 400}}}}
data:
  train: [{{path: "s3://warpbeam/launch/train.jsonl"}}]
  seq_len: 64
train: {{method: sft, max_steps: {max_steps}, global_batch: 4, lr: {lr}, stall_after_s: 6}}
parallelism: {{strategy: ddp}}    # the quickest to start; what a strategy does is tested with the engine
resources: {{accelerators: 2}}
checkpoint: {{every_steps: 20, keep: 2}}
"""


def put_data(s3: StorageConfig) -> None:
    """The one data set of all launch tests, so that it is prepared once."""
    rows = ([("user", f"{n}+{n}?"), ("assistant", f"It is {2 * n}.")] for n in range(300))
    records = ({"messages": [{"role": role, "content": text} for role, text in row]} for row in rows)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    open_store(s3).put("launch/train.jsonl", lines.encode())


@dataclass
class Workplace:
    """A folder with a job file, and the command line in it."""

    folder: Path
    s3: StorageConfig
    name: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def write_job(self, *, max_steps: int = 60, lr: str = "1e-3", extra: str = "") -> Path:
        path = self.folder / "job.yaml"
        path.write_text(JOB.format(name=self.name, max_steps=max_steps, lr=lr) + extra)
        return path

    def view(self) -> RunView:
        return RunView(open_store(self.s3), "launch", self.name)

    def start(self, *arguments: str, log: str = "out.txt", by: str = "warpbeam.cli.main") -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", by, *arguments],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self.started.append(process)
        return process

    def stop_rank(self, rank: int) -> None:
        """A rank of the newest attempt stands still from here on, without dying."""
        os.kill(self.pid_of(rank), signal.SIGSTOP)

    def pid_of(self, rank: int) -> int:
        """The process of a rank of the newest attempt."""
        beat, _ = self.view().heartbeats(self.view().attempts()[-1])[f"rank-{rank}"]
        return int(beat["pid"])

    def close(self) -> None:
        """End what a failing test left running: it would restart the server that the tests stop."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()

    def run(self, *arguments: str, log: str = "out.txt", timeout_s: float = 600) -> tuple[int, str]:
        """Exit code and everything that was printed."""
        process = self.start(*arguments, log=log)
        code = process.wait(timeout_s)
        return code, self.text(log)

    def text(self, log: str = "out.txt") -> str:
        return (self.folder / log).read_text()

    def until(
        self, process: subprocess.Popen[bytes], what: Callable[[], Any], timeout_s: float = 600, every_s: float = 0.1
    ) -> Any:
        """Poll until `what` is true while the process lives."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = what()
            if found:
                return found
            assert process.poll() is None, self.text()
            time.sleep(every_s)
        raise AssertionError(f"not in {timeout_s} s:\n{self.text()}")

    def committed(self) -> int:
        commit = self.view().log.newest_commit()
        return commit.step or 0 if commit else 0
