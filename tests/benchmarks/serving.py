"""Served tokens a second beside `generate`: one prompt after the other, and one padded batch of all.

    python -m tests.benchmarks.serving [--blocks 10] [--clients 16] [--tokens 64] [--threads CORES-1]

The same random Qwen2 (6 layers x 256), prompts, greedy tokens and threads in every arm; the arms take turns within a
block, so that a noisy machine meets them alike. `served` is the whole path: streaming HTTP clients in this process,
Ray Serve's proxy, the replica. The clients' own CPU time is printed: on two cores it is taken from the server.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from warpbeam.serve.deploy import Deployment, deploy, stop_serving

VOCABULARY = 4096
CONTEXT = 1024


def main() -> None:
    """Build, deploy, measure, print, stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--threads",
        type=int,
        default=max(1, len(os.sched_getaffinity(0)) - 1),
        help="of every arm; as `deploy` chooses",
    )
    options = parser.parse_args()
    threads = options.threads
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        home, path = Path(folder) / "home", Path(folder) / "model"
        model = build_model(path)
        prompts = make_prompts(options.clients)
        began = time.perf_counter()
        served = deploy(str(path), name="bench", port=0, home=home, engine={"threads": threads})
        try:
            ready_s = time.perf_counter() - began
            decode = AutoTokenizer.from_pretrained(path).batch_decode
            arms: dict[str, Callable[[], list[str]]] = {
                "sequential": lambda: decode(sequential(model, prompts, options.tokens)),
                "padded batch": lambda: decode(padded_batch(model, prompts, options.tokens)),
                "served": lambda: asyncio.run(over_http(served, prompts, options.tokens)),
            }
            answers = {name: arm() for name, arm in arms.items()}  # also the warm-up
            same = sum(
                streamed == whole.rstrip("\ufffd")  # the server drops half a character at the very end
                for streamed, whole in zip(answers["served"], answers["sequential"], strict=True)
            )
            seconds, client_cpu_s = measure(arms, options.blocks)
        finally:
            stop_serving(home)
    report(seconds, options.clients * options.tokens, ready_s=ready_s, same=same, clients=options.clients)
    print(f"clients' CPU time in a served block: {statistics.median(client_cpu_s):.2f} s, {threads} threads each arm")


def build_model(path: Path) -> Qwen2ForCausalLM:
    """A random model and a tokenizer of the same size, without an end token: every answer has full length."""
    text = [inspect.getsource(module) for module in (argparse, asyncio.base_events, inspect, statistics, random, json)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        text,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config).eval()
    model.save_pretrained(path)
    return model


def make_prompts(count: int) -> list[list[int]]:
    """Token ids, 10 to 60 of them."""
    numbers = random.Random(1)
    return [[numbers.randrange(5, 3000) for _ in range(numbers.randint(10, 60))] for _ in range(count)]


@torch.inference_mode()
def sequential(model: Qwen2ForCausalLM, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """`generate`, prompt by prompt."""
    return [
        model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=tokens, do_sample=False
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]


@torch.inference_mode()
def padded_batch(model: Qwen2ForCausalLM, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """`generate` on all prompts at once: what is possible when all arrive together and end together."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    answers: torch.Tensor = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False)
    return [list(answer) for answer in answers[:, longest:].tolist()]


async def over_http(served: Deployment, prompts: list[list[int]], tokens: int) -> list[str]:
    """All clients at once, streaming."""
    async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
        return await asyncio.gather(*(_stream(client, prompt, tokens) for prompt in prompts))


async def _stream(client: httpx.AsyncClient, prompt: list[int], tokens: int) -> str:
    body = {
        "model": "bench",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        events = [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: {")]
    assert events[-1]["usage"]["completion_tokens"] == tokens
    return "".join(choice["text"] for event in events for choice in event["choices"])


def measure(arms: dict[str, Callable[[], Any]], blocks: int) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of each arm in each block, in a new order each time, and the clients' CPU seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    client_cpu_s = []
    order = list(arms)
    for block in range(blocks):
        random.Random(block).shuffle(order)
        for name in order:
            began, cpu = time.perf_counter(), time.process_time()
            arms[name]()
            seconds[name].append(time.perf_counter() - began)
            if name == "served":
                client_cpu_s.append(time.process_time() - cpu)
    return seconds, client_cpu_s


def report(seconds: dict[str, list[float]], tokens: int, *, ready_s: float, same: int, clients: int) -> None:
    """Rates, and ratios with a 95% interval of their median."""
    print(f"deploy to ready: {ready_s:.1f} s; answers equal to sequential generate: {same} of {clients}")
    for name, values in seconds.items():
        print(f"{name:14} {tokens / statistics.median(values):8.0f} tokens/s (median of {len(values)} blocks)")
    for other in ("sequential", "padded batch"):
        ratios = [b / a for a, b in zip(seconds["served"], seconds[other], strict=True)]
        low, high = interval(ratios)
        print(f"served / {other:14} {statistics.median(ratios):6.2f}x   95% [{low:.2f}, {high:.2f}]")


def interval(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """Bootstrap of the median."""
    numbers = random.Random(0)
    medians = sorted(statistics.median(numbers.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(draws * 0.025)], medians[int(draws * 0.975)]


if __name__ == "__main__":
    main()
