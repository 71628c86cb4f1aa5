"""How long choosing takes: `python -m tests.benchmarks.planner_search`. The bar: 10,000 configurations under 1 s."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace

from warpbeam.plan.answer import Question
from warpbeam.plan.forecast import quick_memory, quick_seconds
from warpbeam.plan.layouts import any_engine, families
from warpbeam.plan.machine import machine_from_words
from warpbeam.plan.model_shape import model_shape
from warpbeam.plan.question import forget
from warpbeam.plan.setup import Recipe

WANTED = 10_000
BAR_S = 1.0
MIXTRAL_8X22B = {
    "model_type": "mixtral",
    "vocab_size": 32_768,
    "hidden_size": 6144,
    "num_hidden_layers": 56,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "intermediate_size": 16_384,
}


def clock() -> float:
    """Seconds of one core, so that a busy machine does not count."""
    return time.process_time()


def question() -> Question:
    """A mixture of experts on 1,024 H100 with every knob open: more than 10,000 legal setups."""
    space = replace(any_engine(56), offloads=("none", "cpu", "nvme"), most_tokens=1 << 20)
    recipe = Recipe(seq_len=8192, micro_batch=1, global_batch=8192)
    return Question(
        shape=model_shape(MIXTRAL_8X22B), recipe=recipe, machine=machine_from_words("1024xH100-SXM"), space=space
    )


def exhaustive_s(asked: Question) -> tuple[int, float]:
    """(setups, seconds) when memory and time of every single one are worked out, nothing pruned."""
    machine = asked.machine
    began, count = clock(), 0
    groups = families(
        asked.shape, machine.accelerators, machine.per_node, machine.link_domain, asked.recipe, asked.space
    )
    for group in groups:
        for setup in group:
            quick_memory(setup, machine)
            quick_seconds(setup, machine)
            count += 1
            if count == WANTED:
                return count, clock() - began
    return count, clock() - began


def main() -> None:
    """Print configurations, core-seconds (median of 5) and the rate for 10,000."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    asked = question()
    times = []
    for _ in range(5):
        forget()
        began = clock()
        found = asked.search()
        times.append(clock() - began)
    seconds = statistics.median(times)
    per_wanted = seconds * WANTED / found.considered
    count, every_s = exhaustive_s(asked)
    assert found.best is not None
    best = asked.forecast(found.best.setup)
    result = {
        "configurations": found.considered,
        "seconds": round(seconds, 4),
        "seconds_per_10000": round(per_wanted, 4),
        "exhaustive_configurations": count,
        "exhaustive_seconds": round(every_s, 4),
        "passes": found.considered >= WANTED and per_wanted < BAR_S,
        "best": f"{best.strategy}, micro-batch {best.micro_batch}, {best.checkpointing}, {best.step_s:.2f} s a step",
    }
    print(json.dumps(result, indent=2) if as_json else "\n".join(f"{key:<28}{value}" for key, value in result.items()))
    raise SystemExit(0 if result["passes"] else 1)


if __name__ == "__main__":
    main()
