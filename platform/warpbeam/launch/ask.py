"""A question without a job file, answered: as lines, as JSON, written out, over sizes, as a DeepSpeed config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from warpbeam.errors import UserError
from warpbeam.launch.ask_words import Words, asked_of, machine_of_words, read_shape, steps_of
from warpbeam.launch.calibration import read_correction
from warpbeam.plan.answer import Answer, Question, answer, smallest
from warpbeam.plan.deepspeed_config import deepspeed_config
from warpbeam.plan.explain import explain_memory
from warpbeam.plan.machine import shares_cores
from warpbeam.plan.nearest import OPEN, question
from warpbeam.plan.report import Line, answer_json, answer_lines, described, difference, why_words
from warpbeam.plan.scaling import Size, scaling
from warpbeam.plan.setup import Setup
from warpbeam.plan.words import count_words, plural


@dataclass(frozen=True, kw_only=True)
class Passing:
    """A question in passing and its answer.

    Attributes:
        fixed: the options left less than everything to choose.
        notes: on how the model was read.
    """

    question: Question
    setup: Setup
    answer: Answer
    steps: int | None
    fixed: bool
    notes: tuple[str, ...] = ()


def ask(words: Words) -> Passing:
    """Read what the words name, and answer. Raises UserError with the nearest legal values."""
    found, notes = _question(words)
    setup = found.best_setup()
    assert setup is not None  # a legal layout was found when the question was checked
    fixed = any(words.layout.get(name) is not None for name in OPEN)
    chosen = answer(found, setup)
    return Passing(question=found, setup=setup, answer=chosen, steps=steps_of(words), fixed=fixed, notes=notes)


def _question(words: Words, *, sized: bool = True) -> tuple[Question, tuple[str, ...]]:
    """The question, and notes on how the model was read."""
    shape, notes = read_shape(words.model)
    machine = machine_of_words(words)
    correction = read_correction(machine.pool, machine.kind)
    return question(asked_of(words), shape, machine, correction, sized=sized), notes


def ask_lines(passing: Passing) -> list[Line]:
    """The answer for people."""
    found, now = passing.question, passing.answer.chosen
    shape, machine = found.shape, found.machine
    active = "" if shape.active_parameters == shape.parameters else f", {count_words(shape.active_parameters)} active"
    layout, recipe = passing.setup.layout, passing.setup.recipe
    tokens = recipe.global_batch * recipe.seq_len
    how: list[str] = [recipe.precision, *([recipe.optimizer] if recipe.optimizer != "adamw" else [])]
    how += ["eager attention"] if recipe.eager_attention else []
    if shape.window is not None:
        how.append(f"a window of {shape.window:,} tokens in {shape.windowed_layers} of {shape.layers} layers")
    head = [
        (
            "model",
            f"{shape.family}, {count_words(shape.parameters)} parameters{active}, {', '.join(how)}",
        ),
        ("ranks", f"{machine.accelerators} x {machine.chip.name} in {plural(machine.nodes, 'node')}"),
        (
            "batch",
            f"{plural(recipe.global_batch, 'sequence')} of {recipe.seq_len} = dp {layout.dp} "
            f"x micro-batch {now.micro_batch} x {now.accumulation}; {tokens:,} tokens a step",
        ),
    ]
    rest = "; the options fix the rest" if passing.fixed else ""
    why = f"of {passing.answer.considered:,} setups {why_words(fits=now.fits, likely=now.likely)}{rest}"
    return head + answer_lines(passing.answer, steps=passing.steps, why=why, open_choice=True)


def ask_warnings(passing: Passing) -> list[str]:
    """What works, but not as well as it looks."""
    return _warnings(passing.question, passing.notes)


def _warnings(question: Question, notes: Sequence[str]) -> list[str]:
    shape, recipe, chip = question.shape, question.recipe, question.machine.chip
    found = list(notes)
    if shape.positions is not None and recipe.seq_len > shape.positions:
        found.append(f"--seq-len {recipe.seq_len} is longer than the model's positions ({shape.positions})")
    if recipe.precision == "fp8" and chip.used_precision("fp8") != "fp8":
        found.append(f"{chip.name} has no fp8 units: it computes in {chip.used_precision('fp8')}")
    if recipe.precision == "bf16" and not chip.peak_bf16 and not question.machine.is_cpu:
        found.append(f"{chip.name} has no bf16 units: it computes in fp32, or ask with --precision fp16")
    if recipe.precision == "fp16" and not chip.peak_fp16 and not question.machine.is_cpu:
        found.append(f"{chip.name} has no fp16 units: it computes in fp32, or ask with --precision bf16")
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
        "notes": list(passing.notes),
    } | answer_json(passing.answer, steps=passing.steps)


def explain_asked(passing: Passing) -> list[str]:
    """The memory sum of the chosen setup, written out."""
    return explain_memory(passing.setup, passing.question.machine, passing.question.correction)


def scale_asked(words: Words, sizes: list[int]) -> tuple[list[Size], list[str]]:
    """The best of each size, the same global batch; rows of zero weight fill one that does not divide. And what a
    person should know."""
    found, notes = _question(words, sized=False)

    def at(count: int) -> Any:
        there = replace(found, machine=found.machine.resized(count))
        setup = there.best_setup()
        if setup is None:
            padded = -(-found.recipe.global_batch // count) * count
            there = replace(there, recipe=replace(found.recipe, global_batch=padded))
            setup = there.best_setup()
        return there.forecast(setup) if setup is not None else None

    tokens = found.recipe.global_batch * found.recipe.seq_len
    return scaling(sizes, tokens, at, cores_shared=shares_cores(found.machine)), _warnings(found, notes)


def emit_deepspeed(passing: Passing) -> tuple[dict[str, Any], str]:
    """(the DeepSpeed config of the setup that the plan calls this version's, in what it differs from the plan's best).

    Raises UserError where this version runs nothing of what was asked, or nothing that DeepSpeed is for.
    """
    found, best = passing.question, passing.answer.chosen
    setup = _run_here(passing)
    ours = found.forecast(setup)
    notes = []
    if ours != best:
        notes.append(f"this is {described(ours)}, the best that this version runs")
        notes.append(f"the plan's best is {described(best)}, {difference(best, ours)}")
    if not ours.fits:
        notes.append("it will likely run, but without a promise")
    config = deepspeed_config(
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
    return config, "; ".join(notes)


class NothingFits(UserError):
    """The answer to a question that was well put: no bad input, so not its exit code."""

    exit_code = 1


def _run_here(passing: Passing) -> Setup:
    """The one setup of this version, which the plan names too. Raises UserError where there is none."""
    found, best = passing.question, passing.answer.chosen
    recipe, see = found.recipe, "leave --emit out to see what would"
    if not found.runs(smallest(found)):
        what = f"this version does not run {recipe.precision} on {found.machine.chip.name}"
        if recipe.lora is not None or recipe.optimizer != "adamw":
            what = "this version runs neither adapters nor another optimizer than adamw"
        raise UserError(what, fix=see, reason="not_run_here")
    setup = passing.setup if best.runs_here else found.best_here()
    if passing.setup.layout.sharding == "ddp":
        raise UserError(
            "ddp has no DeepSpeed config",
            why="it runs without DeepSpeed",
            fix="write `--strategy zero3`",
            reason="bad_strategy",
        )
    if setup is None or (best.runs_here and not best.likely):
        raise NothingFits("nothing that DeepSpeed runs here fits", fix=see, reason="does_not_fit")
    return setup
