"""A plan in words, one fact a line, and as JSON: what `plan`, `run` and `submit` print before anything is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warpbeam.cli.output import out, say, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warpbeam.plan.plan import Plan


def plan_json(plan: Plan) -> dict[str, Any]:
    """The whole plan and the stable keys."""
    from warpbeam.plan.report import answer_json

    return plan.to_dict() | answer_json(plan.answer, steps=plan.steps)


def show_plan(plan: Plan) -> None:
    """The plan for people: one fact a line."""
    for text in plan.notes:
        warn(text)
    show_noted(plan)


def show_noted(plan: Plan) -> None:
    """The plan whose notes were said."""
    say_lines(plan_lines(plan))
    for warning in plan.warnings:
        warn(warning)
    out.file.flush()


def say_lines(lines: Sequence[tuple[str, str]]) -> None:
    """(word, text) pairs, in columns."""
    for name, value in lines:
        say(f"  {name:<14}{value}")


def plan_lines(plan: Plan) -> list[tuple[str, str]]:
    """(word, text) pairs."""
    from warpbeam.plan.report import answer_lines
    from warpbeam.plan.words import count_words

    parameters = "?" if plan.parameters is None else count_words(plan.parameters)
    offload = "" if plan.offload == "none" else f", states in {plan.offload}"
    lines = [
        ("run", f"{plan.team}/{plan.run}"),
        ("method", f"{_method(plan)}, {parameters} parameters, {plan.precision}"),
        ("ranks", f"{plan.world_size} x {plan.accelerator}, {plan.strategy}{offload}"),
        ("batch", _batch(plan)),
        ("tokens", f"{plan.tokens_per_step:,} a step ({plan.global_batch} rows of {plan.seq_len})"),
    ]
    if plan.answer is not None:
        lines += answer_lines(
            plan.answer, steps=plan.steps, why=plan.why, open_choice=plan.was_open, estimated=plan.steps_estimated
        )
    return lines


def _method(plan: Plan) -> str:
    """The built-in method, or which function is the loop."""
    return f"own loop {plan.method}" if ":" in plan.method else plan.method


def _batch(plan: Plan) -> str:
    parts = f"{plan.world_size} ranks x {plan.micro_batch} rows x {plan.accumulation} micro-batches"
    padding = plan.padded_batch - plan.global_batch
    return f"{plan.global_batch} rows = {parts}" + (f" - {padding} of zero weight" if padding else "")
