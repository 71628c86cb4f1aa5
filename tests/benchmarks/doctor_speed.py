"""How fast the doctor reads logs, beside Python's `re`, and in how much memory.

    python -m tests.benchmarks.doctor_speed --gigabytes 10

The logs are those of 16,384 ranks: what NCCL, DeepSpeed, Ray and a trainer print while all is well, and at the end of
most a watchdog timeout; in one, an error. The doctor and `re` read the same lines in alternating blocks of one run;
`re` gets less of them, because it would take hours. Seconds are those of one core's processor time.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import statistics
import time
from collections.abc import Iterator

from warpbeam.doctor.diagnose import diagnose, signals
from warpbeam.doctor.facts import Source
from warpbeam.doctor.scan import Scanner, compiled
from warpbeam.doctor.signal import Reading

RANKS = 16_384
BLOCKS = 10
"""Paired blocks of the comparison with `re`."""
RE_BYTES = 100_000
BLOCK_BYTES = 20_000_000

ORDINARY = (
    "[2026-11-30 12:00:{0:02d},123] [INFO] [logging.py:107:log_dist] [Rank {1}] step={2}, skipped=0, lr=[1e-05]",
    "gpu-{1}:1234:1290 [2] NCCL INFO Channel {0:02d}/0 : 3[3] -> 2[2] via P2P/CUMEM/read",
    "{{'loss': 2.{0}, 'grad_norm': 1.82, 'learning_rate': 1e-05, 'epoch': 0.{2}}}",
    "(RayTrainWorker pid={2}, ip=10.0.0.{0}) iteration {2}/ 100000 | consumed samples: 12000 | lm loss: 2.{0}E+00 |",
    "2026-11-30 12:00:{0:02d},123 INFO worker.py:1234 -- Connected to the cluster, rank {1} of 16384",
    "[I 2026-11-30 12:00:{0:02d}.812 ProcessGroupNCCL.cpp:991] [Rank {1}] NCCL_DEBUG: N/A, size {2}",
)
LAST = (
    "[rank{0}]:[E1130 12:30:01.123 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)\n"
)
CAUSE = "[rank4711]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n"


def ordinary(size: int, seed: int) -> bytes:
    """About `size` bytes of lines that say that all is well."""
    luck = random.Random(seed)
    lines, made = [], 0
    while made < size:
        line = luck.choice(ORDINARY).format(luck.randrange(60), luck.randrange(RANKS), luck.randrange(100_000))
        lines.append(line)
        made += len(line) + 1
    return ("\n".join(lines) + "\n").encode()


def rank_log(rank: int, body: bytes, size: int) -> Iterator[bytes]:
    """One rank's log of about `size` bytes."""
    for _ in range(max(1, size // len(body))):
        yield body
    yield (CAUSE if rank == 4711 else LAST.format(rank)).encode()


def doctor_seconds(scanner: Scanner, source: Source, blocks: Iterator[bytes] | list[bytes]) -> float:
    began = time.process_time()
    scanner.read(source, blocks)
    return time.process_time() - began


def re_seconds(patterns: list[re.Pattern[bytes]], text: bytes) -> float:
    """Every pattern over every line, which is what a doctor without a matcher would do."""
    began = time.process_time()
    for line in text.splitlines():
        for pattern in patterns:
            pattern.search(line)
    return time.process_time() - began


def compare() -> None:
    """MB/s of both, in alternating blocks."""
    patterns = [re.compile(s.pattern.encode(), re.IGNORECASE) for s in compiled(signals(), Reading.LOG, False)[1]]
    text = ordinary(BLOCK_BYTES, 1)
    ours, theirs = [], []
    for block in range(BLOCKS):
        ours.append(len(text) / doctor_seconds(Scanner(signals()), Source(f"{block}.log"), [text]) / 1e6)
        theirs.append(RE_BYTES / re_seconds(patterns, text[:RE_BYTES]) / 1e6)
    for name, speeds in (("doctor", ours), ("re", theirs)):
        spread = f"from {min(speeds):.2f} to {max(speeds):.2f}, {BLOCKS} blocks"
        print(f"{name:<8}{statistics.median(speeds):10.2f} MB/s of one core ({spread})")


def whole(gigabytes: float) -> None:
    """All ranks' logs through one scanner, and the answer."""
    size = int(gigabytes * 1e9 / RANKS)
    body = ordinary(min(size, 1 << 20), 2)
    scanner = Scanner(signals())
    seconds = 0.0
    for rank in range(RANKS):
        source = Source(f"rank-{rank}.log", rank=rank)
        seconds += doctor_seconds(scanner, source, rank_log(rank, body, size))
    first = diagnose(scanner.facts).first
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    speed = scanner.bytes_read / seconds / 1e6
    print(f"{scanner.bytes_read / 1e9:.2f} GB of {RANKS} ranks in {seconds:.0f} s of one core: {speed:.0f} MB/s")
    print(f"peak memory {peak:.2f} GB; answer: {first.kind if first else None}, {first.where if first else None}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=10)
    asked = parser.parse_args()
    compare()
    whole(asked.gigabytes)


if __name__ == "__main__":
    main()
