"""`warpbeam plan`: what would run, whether it fits, how fast and how dear it is; computed, printed, nothing spent."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpbeam.cli.options import Json, OptionalJobFile, Pool
from warpbeam.cli.output import print_json, say, warn
from warpbeam.cli.plan_text import plan_json, say_lines, show_noted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warpbeam.launch.ask_words import Words
    from warpbeam.launch.begin import Planned
    from warpbeam.plan.plan import Plan
    from warpbeam.plan.scaling import Size

DOES_NOT_FIT = 1
"""Exit code of a plan whose promise does not hold."""
QUESTION, LAYOUT = "Without a job file", "Layout, without a job file"


class Emit(StrEnum):
    """What can be printed instead of the plan."""

    DEEPSPEED = "deepspeed"


class Explain(StrEnum):
    """What can be written out."""

    MEMORY = "memory"


def _asked(name: str, help_: str, panel: str = QUESTION, **more: Any) -> Any:
    return typer.Option(name, help=help_, rich_help_panel=panel, show_default=False, **more)


def _whole(name: str, help_: str, example: int, panel: str = QUESTION) -> Any:
    """A number that people like to abbreviate: refused with one that is accepted."""

    def parsed(words: str) -> int:
        try:
            return int(words)
        except ValueError:
            said = f"{words!r} is no whole number. Write it out, for example `{name} {example}`."
            raise typer.BadParameter(said) from None

    return _asked(name, help_, panel, parser=parsed, metavar="N")


def plan(
    job: OptionalJobFile = None,
    pool: Pool = None,
    accelerators: Annotated[
        str | None,
        typer.Option("--accelerators", metavar="N|NxKIND", help="Use N accelerators; without a job file also 16xH100."),
    ] = None,
    emit: Annotated[
        Emit | None, typer.Option("--emit", help="Print the DeepSpeed config as the engine gets it.")
    ] = None,
    explain: Annotated[Explain | None, typer.Option("--explain", help="Write the arithmetic out.")] = None,
    scale: Annotated[
        str | None, typer.Option("--scale", metavar="8,16,32", help="How it scales over these numbers of accelerators.")
    ] = None,
    json: Json = False,
    model: Annotated[
        str | None, _asked("--model", "config.json, its folder, hf://ORG/NAME, or layers=32,hidden=4096,...")
    ] = None,
    seq_len: Annotated[int | None, _whole("--seq-len", "Tokens of a sequence.", 8192)] = None,
    global_batch_tokens: Annotated[
        int | None, _whole("--global-batch-tokens", "Of an optimizer step.", 1_048_576)
    ] = None,
    method: Annotated[str | None, _asked("--method", "pretrain (unless said) or sft.")] = None,
    precision: Annotated[str | None, _asked("--precision", "bf16, fp32, fp16 or fp8.")] = None,
    optimizer: Annotated[str | None, _asked("--optimizer", "adamw, adamw_8bit, adafactor, sgd or muon.")] = None,
    attention: Annotated[str | None, _asked("--attention", "flash, or eager: score matrices are kept.")] = None,
    steps: Annotated[int | None, _whole("--steps", "Optimizer steps to the end.", 100_000)] = None,
    tokens: Annotated[float | None, _asked("--tokens", "Tokens to the end, for example 15e12.")] = None,
    engine: Annotated[
        str | None, _asked("--engine", "any (unless said), or here: only what this version runs.")
    ] = None,
    strategy: Annotated[str | None, _asked("--strategy", "zero1, zero2, zero3, ddp, fsdp, ...", LAYOUT)] = None,
    tp: Annotated[int | None, _whole("--tp", "Tensor parallelism.", 8, LAYOUT)] = None,
    pp: Annotated[int | None, _whole("--pp", "Pipeline parallelism.", 4, LAYOUT)] = None,
    cp: Annotated[int | None, _whole("--cp", "Context parallelism.", 2, LAYOUT)] = None,
    ep: Annotated[int | None, _whole("--ep", "Expert parallelism.", 8, LAYOUT)] = None,
    dp: Annotated[int | None, _whole("--dp", "Data-parallel replicas.", 2, LAYOUT)] = None,
    micro_batch: Annotated[int | None, _whole("--micro-batch", "Sequences of a micro-batch.", 1, LAYOUT)] = None,
    checkpointing: Annotated[str | None, _asked("--checkpointing", "none, selective or full.", LAYOUT)] = None,
    offload: Annotated[str | None, _asked("--offload", "none, cpu or nvme.", LAYOUT)] = None,
    lora: Annotated[int | None, _whole("--lora", "Rank of LoRA adapters.", 16, LAYOUT)] = None,
    base_bits: Annotated[
        int | None, _whole("--base-bits", "Of the weights frozen under --lora: 4, 8 or 16.", 4, LAYOUT)
    ] = None,
    allow: Annotated[
        list[str] | None, _asked("--allow", "tp_across_nodes: tensor parallelism over the network.", LAYOUT)
    ] = None,
) -> None:
    """Show how a job would run on a pool: does it fit, how fast, how dear, what was chosen and why.

    Exits with 0 when it fits, 1 when it does not, 2 when the input is wrong. Or ask without a job file:

    warpbeam plan --model config.json --accelerators 16xH100 --seq-len 8192 --global-batch-tokens 1048576
    """
    if (job is None) == (model is None):
        raise _needs_one(job is None)
    _refuse_two_outputs(emit, explain, scale, json=json)
    if job is not None:
        layout: dict[str, object] = {"--strategy": strategy, "--tp": tp, "--pp": pp, "--cp": cp, "--ep": ep, "--dp": dp}
        layout |= {"--micro-batch": micro_batch, "--checkpointing": checkpointing, "--offload": offload}
        layout |= {"--seq-len": seq_len, "--global-batch-tokens": global_batch_tokens, "--lora": lora}
        layout |= {"--base-bits": base_bits, "--optimizer": optimizer, "--attention": attention, "--steps": steps}
        layout |= {"--tokens": tokens, "--precision": precision, "--allow": allow}
        layout |= {"--method": method, "--engine": engine}
        _refuse_beside_a_job([name for name, value in layout.items() if value is not None])
        _plan_job(job, pool, accelerators, emit=emit, explain=explain, scale=scale, json=json)
        return
    from warpbeam.launch.ask_words import Words

    assert model is not None
    _show_passing(
        Words(
            model=model,
            accelerators=accelerators,
            pool=pool,
            seq_len=seq_len,
            global_batch_tokens=global_batch_tokens,
            method=method or "pretrain",
            precision=precision,
            steps=steps,
            tokens=tokens,
            layout={
                "engine": engine or "any",
                "strategy": strategy,
                "tp": tp,
                "pp": pp,
                "cp": cp,
                "ep": ep,
                "dp": dp,
                "micro_batch": micro_batch,
                "checkpointing": checkpointing,
                "offload": offload,
                "lora": lora,
                "base_bits": base_bits,
                "optimizer": optimizer,
                "attention": attention,
                "allow": tuple(allow or ()),
            },
        ),
        explain=explain,
        scale=scale,
        emit=emit,
        json=json,
    )


def _needs_one(nothing: bool) -> Exception:
    from warpbeam.errors import UserError

    example = "`warpbeam plan --model config.json --accelerators 16xH100 --seq-len 8192 --global-batch-tokens 1048576`"
    what = "nothing to plan: neither a job file nor --model" if nothing else "a job file names its model itself"
    fix = f"name a job file, or ask without one: {example}" if nothing else "leave --model or the job file out"
    return UserError(what, fix=fix, reason="bad_input")


def _refuse_two_outputs(emit: Emit | None, explain: Explain | None, scale: str | None, *, json: bool) -> None:
    """Each prints something else in the plan's place; one would silently be left out."""
    from warpbeam.errors import UserError

    given = [
        name for name, value in (("--scale", scale), ("--emit", emit), ("--explain", explain)) if value is not None
    ]
    given += ["--json"] if json and explain is not None else []  # a text for people
    if len(given) > 1:
        raise UserError(
            f"{given[0]} and {given[1]} print different things",
            fix=f"leave {' or '.join(given)} out, and ask twice for both",
            reason="bad_input",
        )


def _refuse_beside_a_job(given: Sequence[str]) -> None:
    from warpbeam.errors import UserError

    if given:
        raise UserError(
            f"{given[0]} goes with --model; a job file says it itself",
            fix="write it in the job file, under data:, train: or parallelism:",
            reason="bad_input",
        )


def _plan_job(
    job: Any,
    pool: str | None,
    accelerators: str | None,
    *,
    emit: Emit | None,
    explain: Explain | None,
    scale: str | None,
    json: bool,
) -> None:
    from warpbeam.job import load_job
    from warpbeam.launch.begin import Request, plan_request
    from warpbeam.launch.own_code import check_own_code
    from warpbeam.pool import load_pool
    from warpbeam.spec_file import placing

    loaded = load_job(job)
    with placing(job):
        count = _count(accelerators) if scale is None else None  # --scale has its own numbers, and pads the batch
        planned = plan_request(Request(loaded, load_pool(pool), count), on_doubt=warn)
        check_own_code(loaded.job, loaded.root)
    found = planned.plan
    for text in [*found.notes, *_environment(planned)]:
        warn(text)
    if emit is Emit.DEEPSPEED:
        print_json(_config_of(found))
    elif scale is not None:
        from warpbeam.launch.begin import scale_request

        if found.answer is None:
            raise _shape_unknown("scale")
        _show_scaling(scale_request(planned, _sizes(scale)), json=json)
    elif json:
        print_json(plan_json(found))
    elif explain is not None:
        _explain_job(planned)
    else:
        show_noted(found)
    if scale is None and found.fits is False:
        if emit is not None:
            likely = found.answer is not None and found.answer.chosen.likely
            may = "it may not fit (likely, without a promise)" if likely else "it does not fit"
            warn(f"{may}: leave --emit out to see what would")
        raise typer.Exit(DOES_NOT_FIT)


def _environment(planned: Planned) -> list[str]:
    """What is wrong with the variables that ranks would get: said here, refused by `run` and `submit`."""
    from warpbeam.environment.lint import findings, runs_here

    pool = planned.pool.pool
    found = findings(planned.job, pool, ranks=planned.plan.world_size, here=runs_here(pool))
    return [f"{finding.headline}; {finding.do}" for finding in found]


def _config_of(plan: Plan) -> dict[str, Any]:
    from warpbeam.errors import UserError

    if plan.deepspeed is None:
        raise UserError(
            f"{plan.strategy} has no DeepSpeed config",
            why="it runs without DeepSpeed",
            fix="write `strategy: zero3` under parallelism:, or leave --emit out",
            reason="bad_strategy",
        )
    return plan.deepspeed


def _explain_job(planned: Planned) -> None:
    from warpbeam.launch.begin import explain_request

    lines = explain_request(planned)
    if lines is None:
        raise _shape_unknown("explain")
    for line in lines:
        say(line)


def _shape_unknown(what_for: str) -> Exception:
    from warpbeam.errors import UserError

    return UserError(
        f"the model's shape is not known, so there is nothing to {what_for}",
        fix="give the numbers: `warpbeam plan --model layers=32,hidden=4096,heads=32,ffn=14336,vocab=128256 ...`",
        reason="unknown_model_family",
    )


def _show_passing(words: Words, *, explain: Explain | None, scale: str | None, emit: Emit | None, json: bool) -> None:
    from warpbeam.launch.ask import ask, ask_json, ask_lines, ask_warnings, emit_deepspeed, explain_asked, scale_asked

    if scale is not None:
        rows, notes = scale_asked(words, _sizes(scale))
        for text in notes:
            warn(text)
        _show_scaling(rows, json=json)
        return
    passing = ask(words)
    if emit is not None:
        config, note = emit_deepspeed(passing)
        print_json(config)
        for text in (*ask_warnings(passing), *([note] if note else [])):
            warn(text)
        return
    if json:
        print_json(ask_json(passing))
    elif explain is not None:
        for line in explain_asked(passing):
            say(line)
    else:
        say_lines(ask_lines(passing))
    for text in ask_warnings(passing):
        warn(text)
    if not passing.answer.chosen.fits:
        raise typer.Exit(DOES_NOT_FIT)


def _show_scaling(rows: list[Size], *, json: bool) -> None:
    """The table and its plot. Exits with 1 where no size fits."""
    from warpbeam.plan.scaling import bars, table

    some_fit = any(row.found is not None and row.found.fits for row in rows)
    if json:
        print_json({"scaling": [row.to_dict() for row in rows]})
    else:
        for line in table(rows):
            say(line)
        say(f"\nefficiency against the smallest size{' that fits' if some_fit else ''}:")
        for line in bars(rows):
            say(line)
    if not some_fit:
        raise typer.Exit(DOES_NOT_FIT)


def _count(words: str | None) -> int | None:
    """`8`; with a job the pool says of which kind."""
    from warpbeam.errors import UserError

    if words is None:
        return None
    if not words.isdigit() or int(words) < 1:
        raise UserError(
            f"--accelerators {words}: with a job file it is a number",
            why="the pool says which accelerators they are",
            fix="write for example `--accelerators 8`, and name the pool with --pool",
            reason="bad_accelerators",
        )
    return int(words)


def _sizes(words: str) -> list[int]:
    from warpbeam.errors import UserError
    from warpbeam.plan.machine import MOST_ACCELERATORS

    parts = [part.strip() for part in words.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part[:10]) > 0 for part in parts):
        raise UserError(f"--scale {words} is no list of numbers", fix="write `--scale 8,16,32,64`", reason="bad_input")
    if far := [part for part in parts if int(part[:10]) > MOST_ACCELERATORS]:
        raise UserError(
            f"--scale {words}: {far[0]} is more than the {MOST_ACCELERATORS:,} accelerators that the planner knows",
            fix="write for example `--scale 8,16,32,64`",
            reason="bad_input",
        )
    return [int(part) for part in parts]
