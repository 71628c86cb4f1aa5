"""A question without a job file: what was typed, read into a model's shape, machines and what is fixed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from warpbeam.errors import UserError, WarpbeamError
from warpbeam.launch.model_config import check_keys
from warpbeam.plan.asked import METHODS, Asked, inline_shape
from warpbeam.plan.config_keys import idle_notes
from warpbeam.plan.machine import Machine, machine_from_words, machine_of
from warpbeam.plan.model_shape import ModelShape, default_notes, model_shape

ADAPTERS: Final = {"lora": "--lora 16", "qlora": "--lora 16 --base-bits 4"}
PRECISIONS: Final = ("bf16", "fp32", "fp16", "fp8")
CHOICES: Final = {
    "checkpointing": ("none", "selective", "full"),
    "offload": ("none", "cpu", "nvme"),
    "optimizer": ("adamw", "adamw_8bit", "adafactor", "sgd", "muon"),
    "attention": ("flash", "eager"),
}
MOST_STEPS: Final = 10**12


@dataclass(frozen=True, kw_only=True)
class Words:
    """What was typed."""

    model: str
    accelerators: str | None
    pool: str | None
    seq_len: int | None
    global_batch_tokens: int | None
    method: str
    precision: str | None
    steps: int | None
    tokens: float | None
    layout: Mapping[str, Any]


def read_shape(model: str) -> tuple[ModelShape, tuple[str, ...]]:
    """A model's shape, and what a person should know of how it was read: from numbers inline, a config.json, a folder
    with one, or hf://ORG/NAME (cached or fetched)."""
    if "=" in model and "://" not in model:
        return inline_shape(model), ()
    path = _config_path(model)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is no config.json that can be read", why=str(error), fix=_INLINE, reason="bad_model"
        ) from error
    if not isinstance(config, dict):
        raise UserError(f"{path} holds no JSON object", fix=_INLINE, reason="bad_model")
    text = config.get("text_config")  # a model of several modalities: its language model
    config = text if isinstance(text, dict) and "model_type" in text else config
    check_keys(config, str(path))
    shape = model_shape(config)
    return shape, (*default_notes(config, str(path)), *idle_notes(config, str(path)))


_INLINE: Final = (
    "name a config.json, a folder or hf://ORG/NAME, or give the numbers: "
    "--model layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256"
)


def _config_path(model: str) -> Path:
    if model.startswith("s3://"):
        raise UserError(
            f"{model}: --model reads no store", why="a plan needs no network", fix=_INLINE, reason="bad_model"
        )
    if not model.startswith("hf://"):
        path = Path(model.removeprefix("file://")).expanduser()
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            raise UserError(f"there is no {path}", fix=_INLINE, reason="missing_model")
        return path
    from warpbeam.data.tokenizer_files import local_folder

    try:
        return local_folder(model, Path.cwd(), None) / "config.json"
    except WarpbeamError as error:
        if error.reason not in ("hub_offline", "hub_unreachable"):
            raise
        raise UserError(
            f"the configuration of {model} is not on this machine, and the Hub cannot be reached",
            why=error.why,
            fix=_INLINE,
            reason="missing_model",
        ) from error


def machine_of_words(words: Words) -> Machine:
    """The accelerators that were named, in words or of a pool. Raises UserError."""
    if words.pool is None:
        if words.accelerators is None:
            raise UserError(
                "how many accelerators of which kind?",
                fix="write `--accelerators 16xH100`, or name a pool: --pool h100",
                reason="bad_accelerators",
            )
        return machine_from_words(words.accelerators)
    from warpbeam.pool import load_pool

    pool = load_pool(words.pool).pool
    if words.accelerators is None:
        return machine_of(pool, pool.max_ranks)
    if words.accelerators.isdigit():
        count = int(words.accelerators)
    else:
        asked, count = machine_from_words(words.accelerators), machine_from_words(words.accelerators).accelerators
        there = machine_of(pool, 1).chip
        if asked.chip.family != there.family:
            raise UserError(
                f"the pool `{pool.name}` has no {asked.chip.name}",
                why=f"it has {pool.accelerators} x {pool.accelerator.kind}",
                fix=f"write `--accelerators {min(count, pool.max_ranks)}`, or leave --pool out",
                reason="wrong_accelerator",
            )
    if not 1 <= count <= pool.max_ranks:
        raise UserError(
            f"--accelerators asks for {count}, the pool `{pool.name}` has {pool.max_ranks}",
            fix=f"write `--accelerators {pool.max_ranks}` or less"
            + ("" if pool.is_cpu else f", or `--accelerators {count}x{machine_of(pool, 1).chip.name}` without --pool"),
            reason="too_few_accelerators",
        )
    return machine_of(pool, count)


def asked_of(words: Words) -> Asked:
    """What was typed, each word one that it may be. Raises UserError."""
    for name, value in (("--seq-len", words.seq_len), ("--global-batch-tokens", words.global_batch_tokens)):
        if value is None:
            raise UserError(
                f"{name} is missing", fix=f"write for example `{name} {_EXAMPLES[name]}`", reason="bad_input"
            )
    _check_word("--method", words.method, METHODS)
    _check_word("--precision", words.precision, PRECISIONS)
    _check_word("--engine", words.layout["engine"], ("any", "here"))
    for name, legal in CHOICES.items():
        _check_word(f"--{name}", words.layout[name], legal)
    assert words.seq_len is not None
    assert words.global_batch_tokens is not None
    return Asked(
        seq_len=words.seq_len,
        global_batch_tokens=words.global_batch_tokens,
        precision=cast(Any, words.precision),
        **words.layout,
    )


_EXAMPLES: Final = {"--seq-len": 8192, "--global-batch-tokens": 1_048_576}


def _check_word(name: str, value: str | None, legal: tuple[str, ...]) -> None:
    if value is not None and value not in legal:
        fix = f"write {' or '.join(legal)}"
        if name == "--method" and value.lower() in ADAPTERS:
            fix = f"adapters are `{ADAPTERS[value.lower()]}`, beside --method {' or '.join(legal)}"
        raise UserError(f"{name} {value} is none of its words", fix=fix, reason="bad_input")


def steps_of(words: Words) -> int | None:
    """Optimizer steps to the end; None where nobody said. Raises UserError."""
    if words.steps is not None and words.tokens is not None:
        raise UserError("--steps and --tokens say the same", fix="leave one of them out", reason="bad_input")
    if words.steps is not None and not 1 <= words.steps <= MOST_STEPS:
        raise UserError(f"--steps is {words.steps}", fix="write `--steps 1` or more", reason="bad_input")
    if words.tokens is None or words.global_batch_tokens is None:
        return words.steps
    if not (math.isfinite(words.tokens) and 0 < words.tokens <= MOST_STEPS * words.global_batch_tokens):
        raise UserError(f"--tokens is {words.tokens:g}", fix="write for example `--tokens 15e12`", reason="bad_input")
    return max(1, round(words.tokens / words.global_batch_tokens))
