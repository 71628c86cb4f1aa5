"""Speeds of published rows in one unit, tokens per second and accelerator, and back into each source's own formula.

Sources count FLOP differently (README.md in data/): each convention is applied by what the row says of its framework
and its `tflops_kind`, never by the row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tests.benchmarks.published import Reading
from warpbeam.errors import UserError
from warpbeam.plan.hardware import Chip, find_chip, override
from warpbeam.plan.setup import Setup
from warpbeam.plan.step_time import StepTime

BITS: Final = 8
SCHEDULE: Final = {"vp", "vpp", "vpp_layers_per_stage", "schedule"}
MOST_CHUNKS: Final = 8
TUNING: Final = ("finetune", "sft", "lora")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A row that can be predicted, with what was measured (None where it states no speed)."""

    reading: Reading
    setup: Setup
    chip: Chip
    tokens_per_s: float | None
    flops_per_token: float
    peak_flops: float


def read_speed(reading: Reading) -> Speed | None:
    """The speed of a row; None where it lacks a setup or an accelerator of the catalogue."""
    if reading.setup is None or not reading.accelerator:
        return None
    try:
        chip = find_chip(reading.accelerator)
    except UserError:
        return None
    setup = _finer(reading, reading.setup)
    chip = _network(reading, chip, setup)
    flops = source_flops_per_token(reading, setup)
    peak = chip.peak("bf16" if setup.recipe.precision == "fp16" and chip.peak_bf16 else setup.recipe.precision)
    return Speed(
        reading=reading,
        setup=setup,
        chip=chip,
        tokens_per_s=_measured(reading, setup, flops, peak),
        flops_per_token=flops,
        peak_flops=peak,
    )


def in_source_units(speed: Speed, predicted: StepTime) -> dict[str, float]:
    """`tokens_per_s_per_gpu`, `step_s`, `tflops_per_gpu` and `MFU_pct` as the row's source would print them."""
    each = predicted.tokens_per_s_per_accelerator
    flops = each * speed.flops_per_token
    row = speed.reading.row
    tokens = float(row["global_batch"]) * speed.setup.recipe.seq_len if row["global_batch"] else predicted.tokens
    accelerators = float(row["gpus"]) if row["gpus"] else predicted.accelerators
    return {
        "tokens_per_s_per_gpu": each,
        "step_s": tokens / accelerators / each,
        "tflops_per_gpu": flops / 1e12,
        "MFU_pct": 100 * flops / speed.peak_flops,
    }


def mfu_error(reading: Reading, units: Mapping[str, float]) -> float | None:
    """Predicted (`in_source_units`) / measured - 1 of a row's MFU, or else of its FLOP/s; None without either."""
    for column, unit in (("measured_MFU_pct", "MFU_pct"), ("measured_tflops_per_gpu", "tflops_per_gpu")):
        if measured := reading.number(column):
            return units[unit] / measured - 1
    return None


def source_flops_per_token(reading: Reading, setup: Setup) -> float:
    """FLOP of one token by the formula the row's framework prints."""
    shape, s = setup.shape, setup.recipe.seq_len
    h, layers, vocab = shape.hidden_size, shape.layers, shape.vocab_size
    framework = reading.row["framework"].lower()
    hardware = reading.notes.get("tflops_kind", "").startswith("hardware")
    n = shape.active_parameters
    attention = 12.0 * layers * shape.query_size * s
    lora = 2 / 3 if setup.recipe.lora is not None else 1.0
    if any(name in framework for name in ("nemo", "megatron-bridge", "automodel")):
        if shape.experts > 1:  # their calculators count what a token passes through
            return lora * (6.0 * n + attention / 2)
        tuning = setup.recipe.lora is not None or " ft " in framework or reading.notes.get("task", "") in TUNING
        scores = s / 2 if tuning or "bridge" in framework else s  # the newer calculator counts the causal half
        keys = 1.0 if "ignores_gqa" in reading.row["notes"] else shape.kv_heads / shape.heads
        attend = 12.0 * h * shape.query_size * (1 + keys + scores / h)
        own = attend + (18.0 if shape.gated else 12.0) * h * shape.intermediate_size
        return lora * (layers * own + (0.0 if tuning else 6.0 * vocab * h))
    if (hardware and "megatron-deepspeed" in framework) or (hardware and "hf trainer" in framework):
        return 8.0 * n
    if any(name in framework for name in ("megatron", "internevo")):
        forward = 24.0 * layers * h * h * (1 + s / 6 / h + vocab / 12 / layers / h)
        return forward * (4 if hardware else 3) - (2.0 * vocab * h if hardware else 0.0)
    if hardware:
        return 4 / 3 * (6.0 * n + attention)
    if "nanotron" in framework:  # the input embedding is no product
        return 6.0 * (n - (0 if shape.tied else vocab * h)) + attention
    if reading.row["gpu"] == "TPU-V6E":
        return 6.0 * n + attention / 2
    return 6.0 * n + attention


def _measured(reading: Reading, setup: Setup, flops: float, peak: float) -> float | None:
    if each := reading.number("measured_tokens_per_s_per_gpu"):
        return each
    step = reading.number("measured_step_s")
    if step and reading.row["global_batch"]:
        return setup.recipe.global_batch * setup.recipe.seq_len / step / setup.layout.accelerators
    if step:
        return setup.layout.dp * setup.recipe.micro_batch * setup.recipe.seq_len / step / setup.layout.accelerators
    if tflops := reading.number("measured_tflops_per_gpu"):
        return tflops * 1e12 / flops
    if percent := reading.number("measured_MFU_pct"):
        return percent / 100 * peak / flops
    return None


def _finer(reading: Reading, setup: Setup) -> Setup:
    """What matters to speed more than to memory: four-bit products, llm-foundry's early kernels, interleaving.

    Today's Megatron recipes interleave; a row that says nothing of its schedule is read so.
    """
    text = reading.row["precision"].lower()
    layout = setup.layout
    unsaid = not reading.notes.keys() & SCHEDULE
    if unsaid and layout.stack == "megatron" and layout.pp > 1 and setup.recipe.precision != "fp16":
        here = round(setup.shape.layers / layout.pp)
        chunks = max(v for v in range(1, MOST_CHUNKS + 1) if here % v == 0)
        setup = replace(setup, layout=replace(layout, virtual_stages=chunks))
    if "llm-foundry" in reading.row["framework"].lower():
        setup = replace(setup, layout=replace(setup.layout, stack="llm_foundry"))
    if "nvfp4" in text and setup.recipe.precision == "fp8":
        return replace(setup, recipe=replace(setup.recipe, precision="fp4"))
    return setup


def _network(reading: Reading, chip: Chip, setup: Setup) -> Chip:
    """The chip with the network the row states: `RoCE 1600Gbps node-node`, `4x100Gb RoCE`, `RDMA 400Gb/s per GPU`."""
    text = reading.row["interconnect_if_known"]
    if "pcie" in text.lower() and chip.form == "sxm" and "nvlink" not in text.lower():
        chip = override(chip, link_bandwidth=32e9)
    if match := re.search(r"(\d+)\s*[Gg]b/s per [Gg][Pp][Uu]", text):
        return override(chip, nic_bandwidth=float(match[1]) / BITS * 1e9)
    if match := re.search(r"(?:(\d+)\s*x\s*)?(\d{2,4})\s*[Gg]b(?:ps|it/s|/s)?", text):
        node = int(match[1] or 1) * float(match[2]) / BITS * 1e9
        return override(chip, nic_bandwidth=node / setup.layout.per_node)
    return chip
