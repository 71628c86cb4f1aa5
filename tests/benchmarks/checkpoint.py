"""What a checkpoint costs: how long it stops the loop, and how fast it goes to and comes from the store.

    python -m tests.benchmarks.checkpoint [--blocks 10] [--megabytes 384] [--json]

One rank's share of a state (weights and two moments in float32, sixteen layers) against the embedded S3 server on this
machine, which shares its cores. Within each block, in turn:

- `copy`: the state copied into memory that was touched before, the least that any save beside the training must do;
- `stall`: how long `Checkpoints.save` keeps the loop with `background: true`;
- `save`: how long it takes with `background: false`, until the commit is in the log;
- `upload`, `boto upload`: the same shard file by our store, and by boto3's `upload_file` with its defaults;
- `download`, `boto download`, `cp`: the shard by our store, by `download_file`, and a plain copy of the file;
- `restore`, `boto restore`: the newest checkpoint into the state, its sha256 verified; the shard by `download_file`,
  its sha256, and a copy into the state: the same work the plain way.

The server takes several times more processor time for an upload than any client, on the same cores: a ratio of seconds
then shows the server. So the processor time of client and server is printed too, for each gigabyte.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import psutil
import torch

from tests.benchmarks.paired import Ratio, report
from warpbeam.checkpoint.log import RunLog
from warpbeam.checkpoint.members import this_process
from warpbeam.checkpoint.pieces import Piece, whole
from warpbeam.job import CheckpointSpec
from warpbeam.record.phases import PhaseClock
from warpbeam.storage.connect import open_store
from warpbeam.storage.embedded import ensure_server, stop_server
from warpbeam.storage.store import ObjectStore
from warpbeam.storage.upload_process import UploadsElsewhere
from warpbeam.train.ranks import Ranks
from warpbeam.train.saving import Checkpoints, Identity

LAYERS = 16
KINDS = ("weight", "exp_avg", "exp_avg_sq")


class State:
    """One rank's share, as a strategy gives it."""

    def __init__(self, megabytes: int) -> None:
        numel = megabytes * 1_000_000 // (4 * len(KINDS) * LAYERS)
        self.tensors = {
            Piece(f"layers.{layer}", kind, (numel,), whole("", kind, (numel,)).index): torch.randn(numel)
            for layer in range(LAYERS)
            for kind in KINDS
        }

    def pieces(self) -> Iterator[tuple[Piece, Callable[[], torch.Tensor]]]:
        for piece, tensor in self.tensors.items():
            yield piece, lambda tensor=tensor: tensor

    def optimizer_steps(self) -> dict[str, int]:
        return {f"layers.{layer}": 1 for layer in range(LAYERS)}

    def wanted(self, *, optimizer: bool) -> Iterator[Piece]:
        yield from self.tensors

    def restore(self, read: Callable[[Piece], torch.Tensor], steps: Mapping[str, int] | None) -> None:
        for piece, tensor in self.tensors.items():
            tensor.copy_(read(piece).view(tensor.shape))


class Silent:
    """A record that nobody reads."""

    stop_requested = None

    def event(self, kind: str, **fields: Any) -> None: ...
    def metrics(self, row: Mapping[str, Any]) -> None: ...
    def mark(self, phase: str, *, passes: bool = False) -> None: ...
    def beat(self, step: int, phase: str | None = None) -> None: ...
    def left_loop(self) -> None: ...
    def flush_soon(self) -> None: ...


class Bench:
    """The state, a store, and one way of timing each arm."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        server = ensure_server(folder / "home")
        self.store = open_store(server.storage_config())
        self.state = State(megabytes)
        self.bytes = sum(4 * tensor.numel() for tensor in self.state.tensors.values())
        self.target = torch.zeros(self.bytes // 4)
        self.background = self._checkpoints(UploadsElsewhere(self.store), "beside", background=True)  # as a rank does
        self.waiting = self._checkpoints(self.store, "waiting", background=False)
        self.background.reserve(self.state)
        self.step = 0
        self.shard = folder / "shard.safetensors"
        with self.shard.open("wb") as file:
            file.write((os.urandom(1 << 20) * ((self.bytes >> 20) + 1))[: self.bytes])
        self.server = psutil.Process(server.pid)
        self.cpu: dict[str, list[tuple[float, float]]] = {}
        self.bucket = server.bucket
        self.boto = boto3.client(
            "s3",
            endpoint_url=server.endpoint_url,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            region_name="us-east-1",
        )

    def _checkpoints(self, store: ObjectStore, run: str, *, background: bool) -> Checkpoints:
        claim = RunLog(store, "bench", run).claim("0001-bench", [this_process("driver")])
        return Checkpoints(
            store,
            claim,
            Ranks(),
            sink=Silent(),
            clock=PhaseClock(),
            identity=Identity(job_digest="", data_fingerprint="", plan={}, versions={}),
            asked=CheckpointSpec(keep=1, background=background),
            scratch=self.folder / "scratch",
        )

    def block(self) -> dict[str, float]:
        """Seconds of each arm. Ours and boto's change places from block to block."""
        self.step += 1
        found = {"copy": timed(self._copy)}
        found["stall"] = timed(lambda: self.background.save(self.state, self.step, {}, {}))  # type: ignore[arg-type]
        self.background.settle()
        found["save"] = timed(lambda: self.waiting.save(self.state, self.step, {}, {}))  # type: ignore[arg-type]
        down = self.folder / "down"
        pairs: list[dict[str, Callable[[], object]]] = [
            {
                "upload": lambda: self.store.upload(self.shard, "bench/ours"),
                "boto upload": lambda: self.boto.upload_file(str(self.shard), self.bucket, "bench/boto"),
            },
            {
                "download": lambda: self.store.download("bench/boto", down),
                "boto download": lambda: self.boto.download_file(self.bucket, "bench/boto", str(down)),
            },
            {
                "restore": lambda: self.waiting.restore(self.state),  # type: ignore[arg-type,dict-item]
                "boto restore": lambda: self._plain_restore(down),
            },
        ]
        for pair in pairs:
            for name in sorted(pair, reverse=self.step % 2 == 0):
                down.unlink(missing_ok=True)
                found[name] = self._timed_both(name, pair[name])
        found["cp"] = timed(lambda: shutil.copyfile(self.shard, down))
        return found

    def _plain_restore(self, down: Path) -> None:
        self.boto.download_file(self.bucket, "bench/boto", str(down))
        with down.open("rb") as file:
            hashlib.file_digest(file, "sha256")
        flat, at = torch.from_file(str(down), size=self.bytes // 4), 0
        for tensor in self.state.tensors.values():
            tensor.copy_(flat[at : at + tensor.numel()])
            at += tensor.numel()

    def _timed_both(self, name: str, work: Callable[[], object]) -> float:
        """Seconds; keeps the processor time of this process and of the server."""
        before = time.process_time(), sum(self.server.cpu_times()[:2])
        seconds = timed(work)
        after = time.process_time(), sum(self.server.cpu_times()[:2])
        self.cpu.setdefault(name, []).append((after[0] - before[0], after[1] - before[1]))
        return seconds

    def cpu_ratio(self, title: str, above: str, below: str) -> Ratio:
        """Of this process's processor time over paired blocks: what is ours, whatever the server takes."""
        pairs = zip(self.cpu[above], self.cpu[below], strict=True)
        return Ratio(title, [a[0] / b[0] for a, b in pairs])

    def _copy(self) -> None:
        at = 0
        for tensor in self.state.tensors.values():
            self.target[at : at + tensor.numel()].copy_(tensor)
            at += tensor.numel()


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=384)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        home = Path(folder) / "home"
        os.environ["WARPBEAM_HOME"] = str(home)  # where the embedded server of this process is found
        try:
            bench = Bench(Path(folder), options.megabytes)
            bench.block()  # connections, pages
            blocks = [bench.block() for _ in range(options.blocks)]
        finally:
            stop_server(home)
    seconds = {name: statistics.median(block[name] for block in blocks) for name in blocks[0]}

    def ratio(title: str, above: str, below: str, goal: float | None, **how: Any) -> Ratio:
        return Ratio(title, [block[above] / block[below] for block in blocks], goal, **how)

    ratios = [
        ratio("stall / bare copy of the state", "stall", "copy", 1.2, at_most=True),
        ratio("stall / a save that is waited for", "stall", "save", 0.05, at_most=True),
        ratio("upload: boto3's time / ours", "boto upload", "upload", 1.25),
        ratio("download: boto3's time / ours", "boto download", "download", 1.4),
        ratio("restore: the plain way's time / ours", "boto restore", "restore", 1.4),
        ratio("restore with sha256: boto3's bare download / ours", "boto download", "restore", None),
        ratio("download: a plain file copy's time / ours", "cp", "download", None),
        bench.cpu_ratio("upload: boto3's client processor time / ours", "boto upload", "upload"),
        bench.cpu_ratio("download: boto3's client processor time / ours", "boto download", "download"),
    ]
    facts: dict[str, Any] = {"state MB": bench.bytes / 1e6}
    facts |= {name: f"{value:.3f} s, {bench.bytes / 1e6 / value:,.0f} MB/s" for name, value in seconds.items()}
    for name, spent in bench.cpu.items():
        client, server = (statistics.median(pair[side] for pair in spent) / bench.bytes * 1e9 for side in (0, 1))
        facts[f"{name}: processor"] = f"{client:.2f} s/GB client, {server:.2f} s/GB server"
    report(ratios, facts, as_json=options.json)


if __name__ == "__main__":
    main()
