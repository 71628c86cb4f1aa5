"""Measure the bare engine on synthetic packed rows: attention kernel, tokens/s, peak memory, MFU by 6N + 12LHs.

    tests/gpu/run.sh                  # one GPU, at most 8 minutes
    tests/gpu/run.sh --tiny           # the same code on a CPU, in seconds

What is measured is what a `strategy: ddp` run does on one rank: `attention.choose`, `CausalLoss`, `DataParallel`.
First as it is, then with each decoder layer compiled by torch, in a process of its own with a deadline. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch

from warpbeam.train import attention
from warpbeam.train.flops import model_flops_per_token, peak_flops
from warpbeam.train.loss import CausalLoss
from warpbeam.train.strategies.base import AdamW
from warpbeam.train.strategies.ddp import DataParallel

QWEN25_1_5B = {
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
TINY = QWEN25_1_5B | {"vocab_size": 1000, "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2}
GOAL_MFU = 45.0
COMPILE_DEADLINE_S = 210


@dataclass(frozen=True)
class Measured:
    """One way of running it. `mfu` in percent; None where the device's peak is not known."""

    way: str
    kernel: str
    reason: str
    leak: float
    parameters: int
    rows: int
    seq_len: int
    step_ms: float
    tokens_per_s: float
    peak_gib: float
    mfu: float | None
    loss_first: float
    loss_last: float


def example_lengths(rows: int, seq_len: int, generator: random.Random) -> list[int]:
    """Lengths as instruction data has them (log-normal, median 400 tokens), filling each row exactly."""
    lengths: list[int] = []
    for _ in range(rows):
        left = seq_len
        while left:
            drawn = int(math.exp(generator.gauss(math.log(seq_len / 10), 0.8)))
            lengths.append(min(left, max(8, drawn)))
            left -= lengths[-1]
    return lengths


def batch(rows: int, seq_len: int, vocabulary: int, packing: attention.Packing, device: torch.device, seed: int) -> Any:
    """One micro-batch; every token but an example's first carries loss. The text is a pattern that can be learned."""
    lengths = example_lengths(rows, seq_len, random.Random(seed))
    positions = torch.cat([torch.arange(n) for n in lengths]).view(rows, seq_len)
    starts = torch.tensor(random.Random(seed + 1).choices(range(997), k=len(lengths)))
    ids = (torch.repeat_interleave(starts, torch.tensor(lengths)).view(rows, seq_len) + 7 * positions) % (
        vocabulary - 1
    )
    labels = torch.where(positions == 0, -100, ids)
    inputs = {"input_ids": ids.to(device), "position_ids": positions.to(device), "use_cache": False}
    inputs |= packing.inputs(lengths, seq_len, device)
    return SimpleNamespace(labels=labels.to(device), inputs=inputs, tokens=int((labels[:, 1:] != -100).sum()))


def compile_layers(model: torch.nn.Module) -> int:
    """torch.compile each decoder layer in place; how many."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    torch._dynamo.config.cache_size_limit = 64
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.compile()
    return len(layers)


def measure(way: str, *, tiny: bool, rows: int, steps: int) -> Measured:
    """Build, prove the packing, warm up, time `steps` optimizer steps."""
    from transformers import AutoConfig, AutoModelForCausalLM

    cuda = torch.cuda.is_available() and not tiny
    device, precision = torch.device("cuda" if cuda else "cpu"), "bf16" if cuda else "fp32"
    seq_len = 256 if tiny else 4096
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen2", **(TINY if tiny else QWEN25_1_5B), bos_token_id=0, eos_token_id=0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    parameters = sum(p.numel() for p in model.parameters())
    packing = attention.choose(model, device, precision)
    strategy = DataParallel(model, AdamW(), clip=1.0, precision=precision)
    with strategy.forward_only():
        packing, leak = attention.prove(model, strategy.module, packing, config.vocab_size, device)
    if way == "compiled":
        print(f"compiling {compile_layers(model)} layers", flush=True)
    model.train()
    loss_sum = CausalLoss(model)
    times, losses = [], []
    for step in range(steps + 3):
        data = batch(rows, seq_len, config.vocab_size, packing, device, step % 4)
        started = time.perf_counter()
        with strategy.micro_step(last=True):
            loss = loss_sum(strategy.module, data) / data.tokens
            strategy.backward(loss)
        strategy.step(lr=3e-4)  # reads the norm back, so the device has finished
        times.append(time.perf_counter() - started)
        losses.append(float(loss.detach()))
        print(f"{way} step {step}: loss {losses[-1]:.4f}, {1000 * times[-1]:.0f} ms", flush=True)
    step_s = statistics.median(times[3:])
    rate = rows * seq_len / step_s
    peak = peak_flops(torch.cuda.get_device_name()) if cuda else None
    return Measured(
        way=way,
        kernel=packing.kernel,
        reason=packing.reason,
        leak=leak,
        parameters=parameters,
        rows=rows,
        seq_len=seq_len,
        step_ms=1000 * step_s,
        tokens_per_s=rate,
        peak_gib=torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0,
        mfu=100 * rate * model_flops_per_token(config, parameters, seq_len) / peak if peak else None,
        loss_first=losses[0],
        loss_last=losses[-1],
    )


def compiled_apart(arguments: argparse.Namespace) -> Measured | None:
    """The compiled way in a process of its own, so that a slow or failing compiler costs only its own number."""
    command = [sys.executable, __file__, "--way", "compiled", "--rows", str(arguments.rows)]
    command += ["--steps", str(arguments.steps), *(["--tiny"] if arguments.tiny else [])]
    try:
        done = subprocess.run(command, timeout=COMPILE_DEADLINE_S, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        print(f"compiled: not done in {COMPILE_DEADLINE_S} s")
        return None
    if done.returncode:
        print(f"compiled: failed\n{done.stderr[-1500:]}")
        return None
    return Measured(**json.loads(done.stdout.strip().rpartition("\n")[2]))


def report(found: Measured) -> None:
    mfu = f"{found.mfu:.1f}%" if found.mfu is not None else "not known for this device"
    print(
        f"\n{found.way}: attention {found.kernel} ({found.reason}); leak {found.leak:.1e}\n"
        f"  {found.parameters / 1e9:.2f} B parameters, {found.rows} x {found.seq_len} tokens a step, "
        f"{found.step_ms:.0f} ms, {found.tokens_per_s:,.0f} tokens/s\n"
        f"  peak memory {found.peak_gib:.1f} GiB, MFU {mfu}, loss {found.loss_first:.3f} -> {found.loss_last:.3f}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    parser.add_argument("--rows", type=int, default=2, help="rows of 4096 tokens in a step")
    parser.add_argument("--steps", type=int, default=12, help="timed steps")
    parser.add_argument("--way", choices=["eager", "compiled"], help="only this one, result as JSON")
    arguments = parser.parse_args()
    if arguments.way:
        print(
            json.dumps(asdict(measure(arguments.way, tiny=arguments.tiny, rows=arguments.rows, steps=arguments.steps)))
        )
        return 0
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and not arguments.tiny else "CPU"
    print(f"torch {torch.__version__} on {device}", flush=True)
    ways = [measure("eager", tiny=arguments.tiny, rows=arguments.rows, steps=arguments.steps)]
    if device != "CPU":
        torch.cuda.empty_cache()
        compiled = compiled_apart(arguments)
        ways += [compiled] if compiled else []
    for found in ways:
        report(found)
    best = max((found.mfu for found in ways if found.mfu is not None), default=None)
    wanted = "varlen" if device != "CPU" else "sdpa-per-example"
    faults = [f"attention is {found.kernel}, not {wanted}" for found in ways if found.kernel != wanted]
    faults += [f"examples see each other: {found.leak}" for found in ways if found.leak > 1e-4]
    faults += [f"the loss did not fall ({found.way})" for found in ways if not found.loss_last < found.loss_first]
    verdict = {"device": device, "mfu": best, "goal_mfu": GOAL_MFU, "faults": faults, "ways": [asdict(w) for w in ways]}
    print(json.dumps(verdict))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
