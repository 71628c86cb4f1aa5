"""`warpbeam plan JOB.yaml`: what will run, computed and printed, nothing spent."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from warpbeam.cli.options import Accelerators, JobFile, Json, Pool
from warpbeam.cli.output import out, print_json, say, warn

if TYPE_CHECKING:
    from warpbeam.plan.plan import Plan


class Emit(StrEnum):
    """What can be printed instead of the plan."""

    DEEPSPEED = "deepspeed"


def plan(
    job: JobFile,
    pool: Pool = None,
    accelerators: Accelerators = None,
    emit: Annotated[
        Emit | None, typer.Option("--emit", help="Print the DeepSpeed config as the engine gets it.")
    ] = None,
    json: Json = False,
) -> None:
    """Show how a job would run on a pool: ranks, batch, sharding, memory."""
    from warpbeam.job import load_job
    from warpbeam.launch.begin import Request, plan_request
    from warpbeam.launch.own_code import check_own_code
    from warpbeam.pool import load_pool
    from warpbeam.spec_file import placing

    loaded = load_job(job)
    with placing(job):
        found = plan_request(Request(loaded, load_pool(pool), accelerators), on_doubt=warn).plan
        check_own_code(loaded.job, loaded.root)
    if emit is Emit.DEEPSPEED:
        print_json(found.deepspeed)
    elif json:
        print_json(found.to_dict())
    else:
        show_plan(found)


def show_plan(plan: Plan) -> None:
    """The plan for people: one fact a line."""
    for name, value in plan_lines(plan):
        say(f"  {name:<12}{value}")
    for warning in plan.warnings:
        warn(warning)
    out.file.flush()


def plan_lines(plan: Plan) -> list[tuple[str, str]]:
    """(word, text) pairs."""
    parameters = "?" if plan.parameters is None else _count(plan.parameters)
    offload = "" if plan.offload == "none" else f", states in {plan.offload}"
    lines = [
        ("run", f"{plan.team}/{plan.run}"),
        ("method", f"{plan.method}, {parameters} parameters, {plan.precision}"),
        ("ranks", f"{plan.world_size} x {plan.accelerator}, {plan.strategy}{offload}"),
        ("batch", _batch(plan)),
        ("step", f"{plan.tokens_per_step:,} tokens ({plan.global_batch} rows of {plan.seq_len})"),
    ]
    if plan.memory is not None:
        memory = plan.memory
        lines.append(("memory", f"{memory.total_gib:.2f} of {memory.available_gib:.1f} GiB for each rank (first sum)"))
    return lines


def _batch(plan: Plan) -> str:
    parts = f"{plan.world_size} ranks x {plan.micro_batch} rows x {plan.accumulation} micro-batches"
    padding = plan.padded_batch - plan.global_batch
    return f"{plan.global_batch} rows = {parts}" + (f" - {padding} of zero weight" if padding else "")


def _count(number: int) -> str:
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return str(number)
