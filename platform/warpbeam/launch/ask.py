"""A question without a job file, from the words on the command line to the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from warpbeam.errors import InfraError, UserError
from warpbeam.launch.calibration import read_correction
from warpbeam.plan.answer import Answer, Question, answer
from warpbeam.plan.asked import METHODS, Asked, inline_shape, question
from warpbeam.plan.deepspeed_config import deepspeed_config
from warpbeam.plan.explain import explain_memory
from warpbeam.plan.layouts import RUNS_HERE
from warpbeam.plan.machine import Machine, machine_from_words, machine_of
from warpbeam.plan.model_shape import ModelShape, model_shape
from warpbeam.plan.report import Line, answer_json, answer_lines, why_words
from warpbeam.plan.scaling import Size, scaling
from warpbeam.plan.setup import Setup
from warpbeam.plan.words import count_words

PRECISIONS: Final = ("bf16", "fp32", "fp16", "fp8")
CHOICES: Final = {"checkpointing": ("none", "selective", "full"), "offload": ("none", "cpu", "nvme")}


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


@dataclass(frozen=True, kw_only=True)
class Passing:
    """A question in passing and its answer."""

    words: Words
    question: Question
    setup: Setup
    answer: Answer
    steps: int | None


def ask(words: Words) -> Passing:
    """Read what the words name, and answer. Raises UserError with the nearest legal values."""
    shape = read_shape(words.model)
    machine = _machine(words)
    found = question(_asked(words), shape, machine, read_correction(machine.pool, machine.kind))
    setup = found.best_setup()
    if setup is None:
        raise _no_layout(found)
    return Passing(words=words, question=found, setup=setup, answer=answer(found, setup), steps=_steps(words))


def read_shape(model: str) -> ModelShape:
    """A model's shape: numbers inline, a config.json, a folder with one, or hf://ORG/NAME (cached or fetched)."""
    if "=" in model and "://" not in model:
        return inline_shape(model)
    path = _config_path(model)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is no config.json that can be read", why=str(error), fix=_INLINE, reason="bad_model"
        ) from error
    if not isinstance(config, dict):
        raise UserError(f"{path} holds no JSON object", fix=_INLINE, reason="bad_model")
    text = config.get("text_config")  # a model of several modalities: its language model
    return model_shape(text if isinstance(text, dict) and "model_type" in text else config)


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
    except InfraError as error:
        raise UserError(
            f"the configuration of {model} is not on this machine, and the Hub cannot be reached",
            why=error.why,
            fix=_INLINE,
            reason="missing_model",
        ) from error


def _machine(words: Words) -> Machine:
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
            fix=f"write `--accelerators {pool.max_ranks}` or less, or leave --pool out",
            reason="too_few_accelerators",
        )
    return machine_of(pool, count)


def _asked(words: Words) -> Asked:
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
        raise UserError(f"{name} {value} is none of its words", fix=f"write {' or '.join(legal)}", reason="bad_input")


def _steps(words: Words) -> int | None:
    if words.tokens is not None and words.global_batch_tokens:
        return max(1, round(words.tokens / words.global_batch_tokens))
    return words.steps


def _no_layout(found: Question) -> UserError:
    batch, ranks = found.recipe.global_batch, found.machine.accelerators
    from warpbeam.plan.batch import legal_world_sizes, nearest_multiples

    sizes = legal_world_sizes(batch, None, 4 * ranks)
    near = sorted(sorted(sizes, key=lambda size: abs(size - ranks))[:2])
    sequences = nearest_multiples(batch, ranks)
    return UserError(
        f"no legal layout shares {batch} sequences among {ranks} accelerators with what is fixed",
        fix=f"use {' or '.join(map(str, near))} accelerators, or a global batch of "
        f"{' or '.join(map(str, sequences))} sequences",
        reason="batch_does_not_divide",
    )


def ask_lines(passing: Passing) -> list[Line]:
    """The answer for people."""
    found, now = passing.question, passing.answer.chosen
    shape, machine = found.shape, found.machine
    active = "" if shape.active_parameters == shape.parameters else f", {count_words(shape.active_parameters)} active"
    layout, recipe = passing.setup.layout, passing.setup.recipe
    tokens = recipe.global_batch * recipe.seq_len
    head = [
        ("model", f"{shape.family}, {count_words(shape.parameters)} parameters{active}, {recipe.precision}"),
        ("ranks", f"{machine.accelerators} x {machine.chip.name} in {machine.nodes} node(s)"),
        (
            "batch",
            f"{recipe.global_batch} sequences of {recipe.seq_len} = dp {layout.dp} x micro-batch {now.micro_batch} "
            f"x {now.accumulation}; {tokens:,} tokens a step",
        ),
    ]
    why = f"of {passing.answer.considered:,} setups {why_words(fits=now.fits, likely=now.likely)}"
    return head + answer_lines(passing.answer, steps=passing.steps, why=why, open_choice=True)


def ask_warnings(passing: Passing) -> list[str]:
    """What works, but not as well as it looks."""
    shape, recipe, chip = passing.question.shape, passing.question.recipe, passing.question.machine.chip
    found = []
    if shape.positions is not None and recipe.seq_len > shape.positions:
        found.append(f"--seq-len {recipe.seq_len} is longer than the model's positions ({shape.positions})")
    if recipe.precision == "bf16" and not chip.peak_bf16 and not passing.question.machine.is_cpu:
        found.append(f"{chip.name} has no bf16 units: it computes in fp32, or ask with --precision fp16")
    return found


def ask_json(passing: Passing) -> dict[str, Any]:
    """The stable keys and what was asked."""
    layout = passing.setup.layout
    return {
        "parameters": passing.question.shape.parameters,
        "active_parameters": passing.question.shape.active_parameters,
        "accelerator": passing.question.machine.chip.name,
        "accelerators": layout.accelerators,
        "strategy": passing.answer.chosen.strategy,
        "layout": {name: getattr(layout, name) for name in ("tp", "pp", "cp", "ep", "dp")},
        "runs_here": passing.answer.chosen.runs_here,
        "micro_batch": passing.setup.recipe.micro_batch,
        "accumulation": passing.setup.accumulation,
        "activation_checkpointing": passing.setup.recipe.checkpointing,
        "offload": layout.offload,
        "precision": passing.setup.recipe.precision,
        "seq_len": passing.setup.recipe.seq_len,
        "steps": passing.steps,
    } | answer_json(passing.answer, steps=passing.steps)


def explain_asked(passing: Passing) -> list[str]:
    """The memory sum of the chosen setup, written out."""
    return explain_memory(passing.setup, passing.question.machine, passing.question.correction)


def scale_asked(passing: Passing, sizes: list[int]) -> list[Size]:
    """The best of each size, the same global batch."""
    found = passing.question

    def at(count: int) -> Any:
        there = replace(found, machine=found.machine.resized(count))
        setup = there.best_setup()
        if setup is None:  # rows of zero weight fill a batch that does not divide
            padded = -(-found.recipe.global_batch // count) * count
            there = replace(there, recipe=replace(found.recipe, global_batch=padded))
            setup = there.best_setup()
        return there.forecast(setup) if setup is not None else None

    return scaling(sizes, found.recipe.global_batch * found.recipe.seq_len, at)


def emit_deepspeed(passing: Passing) -> dict[str, Any]:
    """The DeepSpeed config of the best setup that this version runs."""
    found = passing.question
    ours = replace(found.space, shardings=tuple(s for s in found.space.shardings if s in RUNS_HERE and s != "ddp"))
    best = found.search(ours).best if ours.shardings else None
    if best is None:
        raise UserError(
            "nothing that DeepSpeed runs here fits",
            fix="leave --emit out to see what would",
            reason="does_not_fit",
        )
    setup = best.setup
    return deepspeed_config(
        stage=cast(Literal[1, 2, 3], int(setup.layout.sharding.removeprefix("zero"))),
        micro_batch=setup.recipe.micro_batch,
        accumulation=setup.accumulation,
        world_size=setup.layout.accelerators,
        clip=1.0,
        precision="fp32" if setup.recipe.precision == "fp32" else "bf16",
        on_cpu=found.machine.is_cpu,
        offload=setup.layout.offload,
        offload_path="/tmp/warpbeam/offload" if setup.layout.offload == "nvme" else None,
    )
