"""The printed plan, held by a golden file: made of fixed numbers, so that refitting the model does not change it.

A change that is meant: `python -m tests.unit.plan.test_report` writes it anew; read the diff.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from warpbeam.plan.answer import Answer, Change
from warpbeam.plan.forecast import Forecast
from warpbeam.plan.report import answer_json, answer_lines

GOLDEN = Path(__file__).parent / "golden"
CHOSEN = Forecast(
    strategy="zero3",
    runs_here=True,
    fits=True,
    likely=True,
    accelerators=16,
    micro_batch=2,
    accumulation=4,
    checkpointing="full",
    offload="none",
    memory_parts={
        "parameters": 0.94,
        "gradients": 1.87,
        "optimizer": 5.61,
        "activations": 6.5,
        "logits": 23.5,
        "communication": 4.2,
        "context": 0.6,
        "fragmentation": 2.56,
    },
    memory_gib=45.78,
    margin_gib=11.4,
    available_gib=79.1,
    host_gib=0.0,
    nvme_gib=0.0,
    time_parts={"compute": 6.1, "recompute": 1.9, "data_communication": 0.5, "optimizer": 0.05, "overhead": 0.01},
    step_s=8.56,
    tokens=1_048_576,
    mfu_6n=0.37,
    mfu_full=0.467,
    price=2.5,
    nodes=2,
    parameters=8_030_261_248,
)
ZERO2 = replace(CHOSEN, strategy="zero2", step_s=8.7, memory_gib=60.1, margin_gib=14.9)
DDP = replace(
    CHOSEN, strategy="ddp", fits=False, likely=False, micro_batch=1, step_s=9.1, memory_gib=155.0, margin_gib=38.4
)
FSDP = replace(CHOSEN, strategy="fsdp", runs_here=False, checkpointing="selective", step_s=7.1)
ANSWER = Answer(
    chosen=CHOSEN,
    stages=(DDP, ZERO2, CHOSEN),
    alternatives=(FSDP, ZERO2),
    help_most=Change(
        text="`activation_checkpointing: false`", runs_here=True, memory_gib=70.0, tokens_per_s=151_000.0, gain=0.23
    ),
    would_fit=(),
    considered=725,
)
TIGHT = replace(
    ANSWER,
    chosen=replace(DDP, price=None, corrected_by=("first-run",), host_gib=0.0),
    help_most=None,
    would_fit=(Change(text="`strategy: zero3`", runs_here=True, memory_gib=45.8, tokens_per_s=122_500.0),),
)
LIKELY = replace(TIGHT, chosen=replace(CHOSEN, fits=False, memory_gib=74.0, margin_gib=9.0))
OFFLOADED = replace(ANSWER, chosen=replace(CHOSEN, offload="cpu", host_gib=8.4), help_most=None)
CASES = {
    "plan-that-fits.txt": (ANSWER, 1000),
    "plan-that-does-not-fit.txt": (TIGHT, None),
    "plan-that-likely-runs.txt": (LIKELY, 10),
    "plan-that-offloads.txt": (OFFLOADED, 10),
}


def rendered(name: str) -> str:
    found, steps = CASES[name]
    lines = answer_lines(found, steps=steps, why="the fastest that fits (strategy left open)", open_choice=True)
    return "".join(f"{word:<14}{text}\n" for word, text in lines)


@pytest.mark.parametrize("name", CASES)
def test_the_printed_plan(name: str) -> None:
    assert rendered(name) == (GOLDEN / name).read_text(encoding="utf-8")


def test_why_what_is_a_little_faster_was_not_chosen() -> None:
    close = replace(ANSWER, alternatives=(replace(ZERO2, step_s=8.45),))
    lines = dict(answer_lines(close, steps=None, why="the fastest that fits", open_choice=True))
    assert lines["chosen"].endswith("the fastest that fits; of those within 2% of it, what needs least memory")
    lines = dict(answer_lines(ANSWER, steps=None, why="the fastest that fits", open_choice=True))
    assert lines["chosen"].endswith("the fastest that fits")


def test_small_numbers_are_no_nought() -> None:
    slow = replace(CHOSEN, step_s=1e7, mfu_6n=2e-5, mfu_full=3e-5, price=1e-9)
    lines = dict(answer_lines(replace(ANSWER, chosen=slow), steps=1, why="", open_choice=False))
    assert lines["speed"].startswith("0.1 tokens/s (0.0066 each); MFU 0.002% by 6N, 0.003%")
    assert "1 step," in lines["to the end"]
    assert "cost 4.4e-05" in lines["to the end"]


def test_json_has_the_stable_keys() -> None:
    found = json.loads(json.dumps(answer_json(ANSWER, steps=1000)))
    assert found["fits"] is True
    assert found["memory_per_gpu_gib"]["total"] == 45.78
    assert sum(found["memory_per_gpu_gib"]["parts"].values()) == pytest.approx(45.78)
    assert found["memory_per_gpu_gib"]["promised"] == pytest.approx(57.18)
    assert sum(found["step_time_s"]["parts"].values()) == pytest.approx(found["step_time_s"]["total"])
    assert found["tokens_per_s"] == pytest.approx(1_048_576 / 8.56)
    assert (found["mfu_6n"], found["mfu_full"]) == (0.37, 0.467)
    assert found["hours"] == pytest.approx(1000 * 8.56 / 3600)
    assert found["cost"] == pytest.approx(found["hours"] * 16 * 2.5)
    assert set(found["formulas"]) >= {"mfu_6n", "mfu_full", "memory", "step_time"}


def test_json_where_the_model_is_not_known() -> None:
    found = answer_json(None, steps=None)
    assert found["fits"] is None
    assert found["step_time_s"] is None


if __name__ == "__main__":
    for case in CASES:
        (GOLDEN / case).write_text(rendered(case), encoding="utf-8")
