"""Changes to a question: what each does to it, and how a person writes it, in a job file or as an option.

A change is names and values (`{"strategy": "zero3", "checkpointing": "full"}`). Advice is made of these alone: what is
printed is what was tried, and what it does not name stays as it was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from warpbeam.plan.layouts import Space
from warpbeam.plan.question import Question
from warpbeam.plan.setup import Lora

Changes = Mapping[str, Any]

FIELDS: Final = {  # of plan/layouts.py's Space
    "strategy": "shardings",
    "tp": "tps",
    "pp": "pps",
    "cp": "cps",
    "ep": "eps",
    "checkpointing": "checkpointings",
    "offload": "offloads",
    "micro_batch": "micro_batches",
}
IN_A_JOB: Final = {
    "strategy": "`strategy: {}`",
    "checkpointing": "`activation_checkpointing: {}`",
    "offload": "`offload: {}`",
    "micro_batch": "`micro_batch: {}`",
    "accelerators": "`accelerators: {}`",
    "seq_len": "`seq_len: {}`",
    "global_batch": "`global_batch: {}`",
}
SWITCH: Final = {"none": "false", "full": "true"}


def changed(question: Question, changes: Changes, wide: Space | None = None) -> Question:
    """The question with the changes made.

    Args:
        wide: what becomes open where a change opens a field (value None): everything that engines do.
    """
    space, recipe, machine = question.space, question.recipe, question.machine
    for name, value in changes.items():
        if name in FIELDS:
            opened = getattr(wide or Space(), FIELDS[name])
            values: dict[str, Any] = {FIELDS[name]: opened if value is None else (value,)}
            space = replace(space, **values)
    if "dp" in changes:
        space = replace(space, dp=changes["dp"])
    if "lora" in changes:
        recipe = replace(recipe, lora=Lora(rank=changes["lora"], base_bits=changes["base_bits"]))
    if "accelerators" in changes:
        machine = machine.resized(changes["accelerators"])
    sizes = {name: changes[name] for name in ("seq_len", "global_batch", "precision") if name in changes}
    return replace(question, space=space, recipe=replace(recipe, **sizes), machine=machine)


def change_words(question: Question, changes: Changes) -> str:
    """Every change by its name: `strategy: zero3` and `micro_batch: 1`, or `--strategy zero3 --micro-batch 1`."""
    words = []
    if (count := changes.get("accelerators")) is not None and _another_pool(question, count):
        words.append(_machines(question, count))
        changes = {name: value for name, value in changes.items() if name != "accelerators"}
    if question.in_passing:
        options = _options(question, changes)
        return " and ".join([*words, *([f"`{' '.join(options)}`"] if options else [])])
    for name, value in changes.items():
        if name == "lora":
            bits = changes["base_bits"]
            words.append(f"{'LoRA' if bits == 16 else 'QLoRA'} adapters (a base in {bits} bits)")
        elif name in IN_A_JOB:
            words.append(IN_A_JOB[name].format(SWITCH.get(value, value) if name == "checkpointing" else value))
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _another_pool(question: Question, count: int) -> bool:
    """More than the pool has: no option and no line of a job makes them."""
    machine = question.machine
    there = machine.most or (machine.accelerators if machine.pool or not question.in_passing else None)
    return there is not None and count > there


def _machines(question: Question, count: int) -> str:
    machine = question.machine
    here = f" (`{machine.pool}` has {machine.most or machine.accelerators})" if machine.pool else ""
    return f"another pool, of {count} accelerators{here}"


def _options(question: Question, changes: Changes) -> list[str]:
    words = []
    for name, value in changes.items():
        if name == "accelerators":
            words.append(
                f"--accelerators {value}" + ("" if question.machine.pool else f"x{question.machine.chip.name}")
            )
        elif name == "global_batch":
            tokens = value * changes.get("seq_len", question.recipe.seq_len)
            if tokens != question.recipe.global_batch * question.recipe.seq_len:
                words.append(f"--global-batch-tokens {tokens}")
        else:
            words.append(f"--{name.replace('_', '-')} {value}")
    return words
