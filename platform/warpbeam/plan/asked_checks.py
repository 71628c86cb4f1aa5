"""Values of a question in passing that cannot be, whatever the layout: refused with what may be written instead."""

from __future__ import annotations

from typing import Final

from warpbeam.errors import UserError
from warpbeam.plan.asked import STRATEGIES, Asked
from warpbeam.plan.layouts import ACROSS_NODES
from warpbeam.plan.machine import Machine
from warpbeam.plan.memory_terms import BASE_BYTES
from warpbeam.plan.model_shape import ModelShape

# Ends that nobody reaches; without them a mistyped number costs minutes of dividing.
MOST_SEQ_LEN: Final = 1 << 27
MOST_SEQUENCES: Final = 1 << 24
SIZES: Final = ("tp", "pp", "cp", "ep", "dp", "micro_batch")


def check_values(asked: Asked, shape: ModelShape, machine: Machine) -> None:
    """Raises UserError, exit 2, with what may be written instead."""
    _check_lengths(asked, shape)
    for name in SIZES:
        value = getattr(asked, name)
        if value is not None and not 1 <= value <= MOST_SEQUENCES:
            option = name.replace("_", "-")
            raise UserError(f"--{option} is {value}", fix=f"write `--{option} 1` or more", reason="bad_layout")
    if asked.strategy is not None and asked.strategy not in STRATEGIES:
        raise UserError(
            f"there is no strategy `{asked.strategy}`", fix=f"there are {', '.join(STRATEGIES)}", reason="bad_strategy"
        )
    if wrong := [word for word in asked.allow if word != ACROSS_NODES]:
        raise UserError(
            f"--allow {wrong[0]} is none of its words", fix=f"write `--allow {ACROSS_NODES}`", reason="bad_input"
        )
    _check_adapters(asked, shape)
    if asked.engine == "here":
        _check_here(asked, machine)


def _check_lengths(asked: Asked, shape: ModelShape) -> None:
    if not 1 <= asked.seq_len <= MOST_SEQ_LEN:
        raise UserError(
            f"--seq-len is {asked.seq_len}",
            fix=f"write 1 to {MOST_SEQ_LEN}, for example `--seq-len 8192`",
            reason="bad_input",
        )
    if not 1 <= asked.global_batch_tokens <= asked.seq_len * MOST_SEQUENCES:
        raise UserError(
            f"--global-batch-tokens is {asked.global_batch_tokens}",
            fix=f"write a multiple of --seq-len, for example `--global-batch-tokens {128 * asked.seq_len}`",
            reason="bad_input",
        )
    if shape.learned_positions and shape.positions and asked.seq_len > shape.positions:
        raise UserError(
            f"--seq-len {asked.seq_len} is longer than the {shape.positions} positions of the model",
            why=f"{shape.family} has a parameter for each position, and none beyond them",
            fix=f"write `--seq-len {shape.positions}` or less",
            reason="too_few_positions",
        )


def _check_adapters(asked: Asked, shape: ModelShape) -> None:
    if asked.lora is not None and not 1 <= asked.lora <= shape.hidden_size:
        raise UserError(
            f"--lora is {asked.lora}",
            why=f"the rank of adapters is from 1 to the model's width, {shape.hidden_size}",
            fix="write for example `--lora 16`",
            reason="bad_input",
        )
    if asked.base_bits is None:
        return
    if asked.base_bits not in BASE_BYTES:
        raise UserError(
            f"--base-bits is {asked.base_bits}", fix="write `--base-bits 4`, `8` or `16`", reason="bad_input"
        )
    if asked.lora is None:
        raise UserError(
            "--base-bits goes with --lora",
            why="only weights that are frozen under adapters are kept in fewer bits",
            fix=f"write for example `--lora 16 --base-bits {asked.base_bits}`",
            reason="bad_input",
        )


def _check_here(asked: Asked, machine: Machine) -> None:
    """What this version's engine has not, whatever the layout."""
    lacking = [
        word
        for word, wanted in (
            ("TPUs", machine.chip.form == "tpu"),
            ("LoRA adapters", asked.lora is not None),
            (f"precision {asked.precision}", asked.precision not in (None, "bf16", "fp32")),
            (f"optimizer {asked.optimizer}", asked.optimizer not in (None, "adamw")),
        )
        if wanted
    ]
    if lacking:
        raise UserError(
            f"this version does not run {lacking[0]}",
            fix="leave --engine out to ask about every engine",
            reason="not_run_here",
        )
