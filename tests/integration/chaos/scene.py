"""A run on a Ray cluster of two nodes with an S3 server behind a proxy, and everything of it that can be broken."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil

from tests.integration.chaos.faults import ENDS_RANKS, Fault
from tests.integration.chaos.proxy import S3Proxy
from tests.integration.launch_runs import put_data
from tests.integration.ray_head import Head, ray_head
from warpbeam.record.states import RunState
from warpbeam.record.view import RunView
from warpbeam.storage import StorageConfig, open_store
from warpbeam.storage.embedded import EmbeddedServer, ensure_server, stop_server

TEAM: Final = "chaos"
EVERY_STEPS: Final = 10
PACE_S: Final = 0.1  # of a step, so that thousands of faults' worth of steps can be repeated undisturbed in minutes
PATIENCE_S: Final = 300.0
COMMANDS: Final = 4  # as often a person would give the command again for one fault

JOB: Final = """\
schema: warpbeam/job/v1
name: {name}
team: chaos
model:
  config: {{model_type: qwen2, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1,
    intermediate_size: 64, max_position_embeddings: 128, tie_word_embeddings: true}}
  tokenizer: {{train: {{vocab_size: 400}}}}
data:
  train: [{{path: "s3://warpbeam/launch/train.jsonl"}}]
  seq_len: 64
train: {{method: sft, max_steps: {max_steps}, global_batch: 4, lr: 1e-3, schedule: constant, stall_after_s: 10}}
parallelism: {{strategy: {strategy}}}
resources: {{accelerators: 2}}
checkpoint: {{every_steps: {every}, keep: 2}}
code: {{callbacks: ["hooks:Pace"]}}
"""
POOL: Final = """\
schema: warpbeam/pool/v1
name: chaos
accelerator: {{kind: cpu, memory_gib: 4}}
nodes: 2
accelerators_per_node: 1
cpus_per_worker: 1
local_disk: {disk}
storage: {{kind: s3, uri: "s3://warpbeam", endpoint_url: "{url}"}}
"""
HOOKS: Final = """\
import os, time

class Pace:
    def on_step(self, ctx, row):
        if ctx.rank == 0:
            with open({steps!r}, "a") as file:
                file.write(f"{{time.time():.3f}} {{os.getpid()}} {{row['step']}}\\n")
        time.sleep({pace})
"""


@dataclass(frozen=True)
class Step:
    """One step that rank 0 has taken, when and in which process."""

    at: float
    pid: int
    number: int


@dataclass(frozen=True)
class Outcome:
    """What followed a fault.

    Args:
        lost: steps that were taken again.
        back_s: from the fault to the next step; of ranks that lived on, the longest pause that followed.
        commands: how often the command had to be given again.
    """

    fault: Fault
    lost: int
    back_s: float
    commands: int


class Scene:
    """Use as a context manager. With `own_ray` the command brings its own Ray, else it joins two nodes."""

    def __init__(self, folder: Path, *, own_ray: bool, strategy: str) -> None:
        self.folder, self.own_ray, self.strategy = folder, own_ray, strategy
        self.steps_file = folder / "steps.txt"
        self._stack = ExitStack()
        self._cluster = ExitStack()
        self._head: Head | None = None
        self._command: subprocess.Popen[bytes] | None = None
        self._nodes = 1

    def __enter__(self) -> Scene:
        self._home = self.folder / "home"
        self._set("WARPBEAM_HOME", str(self._home))
        self.server = ensure_server(self._home)
        self._stack.callback(stop_server, self._home)
        self._set("AWS_ACCESS_KEY_ID", self.server.access_key)
        self._set("AWS_SECRET_ACCESS_KEY", self.server.secret_key)
        # Not `embedded`: a client of that kind would start a killed server again.
        self.config = StorageConfig(uri="s3://warpbeam", kind="s3", endpoint_url=self.server.endpoint_url)
        put_data(self.config)
        self.proxy = self._stack.enter_context(S3Proxy(_address(self.server)))
        self._stack.callback(self._cluster.close)
        if not self.own_ray:
            self._new_cluster()
        self._stack.callback(self._end_command)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def view(self, name: str) -> RunView:
        """Of a run, past the proxy."""
        return RunView(open_store(self.config), TEAM, name)

    def begin(self, name: str) -> None:
        """Write the job and give the command."""
        self.name = name
        self._write(name, max_steps=1_000_000, pace_s=PACE_S)
        self._give_command()

    def inject(self, fault: Fault) -> Outcome:
        """Break it in the run as it trains, mend what does not mend itself, wait until the run has gone on."""
        self._until(self._trains, "trains")
        before = self.steps()
        committed = self._committed()
        struck: list[float] = []

        def strike() -> None:
            self._strike(fault)
            struck.append(time.time())

        if fault.moment is None:
            time.sleep(fault.after_s)
            strike()
        else:
            sprung = self.proxy.at(fault.moment, fault.side, strike)
            if fault.moment == "restore":
                before = self.steps()
                self._kill_rank(fault.rank)
            self._until(sprung.is_set, f"comes to its next {fault.moment}", revive=False)
        self._mend(fault)
        pids = {step.pid for step in before}
        commands = self._until(lambda: self._went_on(fault, committed, struck[0], pids), "goes on")
        return self._outcome(fault, struck[0], pids, commands)

    def stop(self) -> int:
        """Ctrl-C; returns the step of the last checkpoint."""
        assert self._command is not None
        self._until(self._trains, "trains")
        self._command.send_signal(signal.SIGINT)
        assert self._command.wait(PATIENCE_S) == 1, self.output()
        assert self.view(self.name).state() == (RunState.STOPPED, "interrupted"), self.output()
        return self._committed()

    def repeat_undisturbed(self, name: str, steps: int) -> None:
        """The same steps in peace, on the bare engine: neither Ray nor a launcher of ours has a say in it."""
        self._write(name, max_steps=steps, pace_s=0)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += ["-m", "warpbeam.train", "job.yaml", "--pool", "pool.yaml"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=self.folder, env=environment, check=True, stdout=subprocess.DEVNULL)

    def steps(self) -> list[Step]:
        """Every step of every attempt, as the ranks wrote it down on this machine."""
        if not self.steps_file.exists():
            return []
        lines = self.steps_file.read_text().splitlines()
        fields = [line.split() for line in lines if line.count(" ") == 2]
        return [Step(float(at), int(pid), int(number)) for at, pid, number in fields]

    def output(self) -> str:
        """The end of what the commands said."""
        return (self.folder / "out.txt").read_text(errors="replace")[-6000:]

    def _write(self, name: str, *, max_steps: int, pace_s: float) -> None:
        (self.folder / "hooks.py").write_text(HOOKS.format(steps=str(self.steps_file), pace=pace_s))
        (self.folder / "pool.yaml").write_text(POOL.format(url=self.proxy.url, disk=self.folder / "disk"))
        job = JOB.format(name=name, max_steps=max_steps, strategy=self.strategy, every=EVERY_STEPS)
        (self.folder / "job.yaml").write_text(job)

    def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case "rank":
                self._kill_rank(fault.rank)
            case "driver":
                assert self._command is not None
                self._command.kill()
            case "raylet" if self._head is not None:
                self._head.kill_node(f"node-{self._nodes}")
            case "raylet":
                _kill([p for p in self._children() if p.name() == "raylet"])
            case "head":
                assert self._head is not None
                folder = str(self._head.folder)
                mine = [
                    p
                    for p in psutil.process_iter(["cmdline"])
                    if any(folder in part for part in p.info["cmdline"] or ())
                ]
                _kill([p for p in mine if p.name() in ("raylet", "gcs_server")])
            case "server":
                os.kill(self.server.pid, signal.SIGKILL)
            case "network":
                self.proxy.cut()

    def _mend(self, fault: Fault) -> None:
        match fault.kind:
            case "server":
                time.sleep(fault.outage_s)
                self.server = ensure_server(self._home)
                self.proxy.upstream = _address(self.server)
            case "network":
                time.sleep(fault.outage_s)
                self.proxy.mend()
            case "raylet" if self._head is not None:
                self._add_node()
            case "head":
                self._new_cluster()

    def _kill_rank(self, rank: int) -> None:
        """A rank of the newest attempt, by what the attempt itself says its processes are."""
        view = self.view(self.name)
        beat, _ = view.heartbeats(view.attempts()[-1])[f"rank-{rank}"]
        os.kill(int(beat["pid"]), signal.SIGKILL)

    def _trains(self) -> bool:
        """Whether the newest attempt has committed a checkpoint of its own, two at the run's beginning."""
        view = self.view(self.name)
        attempts = view.attempts()
        commits = [entry for entry in view.log.read() if entry.kind == "commit"]
        return len(commits) > 1 and commits[-1].attempt == attempts[-1]

    def _committed(self) -> int:
        commit = self.view(self.name).log.newest_commit()
        return commit.step or 0 if commit else 0

    def _went_on(self, fault: Fault, committed: int, struck_at: float, pids: set[int]) -> bool:
        """A step has been taken by new ranks where the fault ended the old, and a later checkpoint is there."""
        after = [step for step in self.steps() if step.at > struck_at]
        again = fault.kind in ENDS_RANKS or fault.moment == "restore"
        fresh = [step for step in after if step.pid not in pids] if again else after
        return bool(fresh) and self._committed() > committed

    def _outcome(self, fault: Fault, struck_at: float, pids: set[int], commands: int) -> Outcome:
        steps = self.steps()
        old = [step for step in steps if step.pid in pids]
        new = [step for step in steps if step.pid not in pids]
        if new:
            return Outcome(fault, old[-1].number - new[0].number + 1, new[0].at - struck_at, commands)
        around = [step.at for step in old if step.at > struck_at - 1]
        pauses = [later - earlier for earlier, later in itertools.pairwise(around)]
        return Outcome(fault, 0, max(pauses, default=0.0), commands)

    def _until(self, what: Callable[[], Any], words: str, *, revive: bool = True) -> int:
        """Poll; a command that has ended is given again, as a person would. Returns how often it was."""
        deadline = time.monotonic() + PATIENCE_S
        again = 0
        while time.monotonic() < deadline:
            if what():
                return again
            assert self._command is not None
            if revive and self._command.poll() is not None:
                assert again < COMMANDS, f"{self.name} does not go on:\n{self.output()}"
                again += 1
                self._give_command()
            time.sleep(0.1)
        raise AssertionError(f"not in {PATIENCE_S:.0f} s: {self.name} {words}\n{self.output()}")

    def _give_command(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if self._head is not None:
            environment["RAY_ADDRESS"] = self._head.address
        with (self.folder / "out.txt").open("ab") as output:
            self._command = subprocess.Popen(
                [sys.executable, "-m", "warpbeam.cli.main", "run", "job.yaml", "--pool", "pool.yaml"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )

    def _end_command(self) -> None:
        if self._command is not None and self._command.poll() is None:
            _kill([*self._children(), psutil.Process(self._command.pid)])

    def _children(self) -> list[psutil.Process]:
        assert self._command is not None
        return psutil.Process(self._command.pid).children(recursive=True)

    def _new_cluster(self) -> None:
        """A head and a second node; the ranks of the old have none to report to and end."""
        self._cluster.close()
        self._head = self._cluster.enter_context(ray_head({}, cpus=1))
        self._nodes = 1
        self._add_node()

    def _add_node(self) -> None:
        assert self._head is not None
        self._nodes += 1
        self._head.add_node(f"node-{self._nodes}", cpus=1)

    def _set(self, name: str, value: str) -> None:
        self._stack.enter_context(_environment(name, value))


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _address(server: EmbeddedServer) -> tuple[str, int]:
    parts = urlsplit(server.endpoint_url)
    return parts.hostname or "", parts.port or 0


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
