"""What a job leaves open, chosen: strategy, micro-batch, activation checkpointing, offload. What it states stays.

Chosen is the fastest that fits. Only what this version's engine runs is looked at; ddp only when a job asks for it (it
computes under autocast on fp32 weights, which is another arithmetic than ZeRO's bf16). CPU pools keep ZeRO-3 without
recomputing: they are there to rehearse what GPUs will run. States are offloaded only where the pool says how much host
memory there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, cast

from warpbeam.job import Job, Offload, Strategy
from warpbeam.plan.batch import enough_rows, largest_micro_batch
from warpbeam.plan.correction import Correction
from warpbeam.plan.forecast import quick_memory, quick_seconds
from warpbeam.plan.layouts import Space, offloads_of
from warpbeam.plan.machine import Machine
from warpbeam.plan.model_shape import ModelShape
from warpbeam.plan.report import why_words
from warpbeam.plan.search import Candidate, ranked
from warpbeam.plan.setup import Checkpointing, Layout, Recipe, Setup


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What will run.

    Attributes:
        setup: for predictions; None where the model's shape is not known.
        space: what was open.
    """

    strategy: Strategy
    offload: Offload
    checkpointing: bool
    micro_batch: int
    setup: Setup | None
    space: Space
    why: str = "as the job says"
    was_open: bool = False


def choose_for_job(
    job: Job,
    machine: Machine,
    precision: Literal["fp32", "bf16"],
    shape: ModelShape | None,
    *,
    may_pad: bool,
    correction: Correction | None = None,
) -> Chosen:
    """The fastest setup that fits, of those the job leaves open; the one that needs least memory where none fits."""
    rows = -(-job.train.global_batch // machine.accelerators)
    enough = enough_rows(job.data.seq_len, on_cpu=machine.is_cpu)
    space = _space(job, machine, shape, enough)
    fixed = job.parallelism.micro_batch
    if shape is None:
        return Chosen(
            strategy=job.parallelism.strategy,
            offload=job.parallelism.offload,
            checkpointing=bool(job.train.activation_checkpointing),
            micro_batch=fixed or largest_micro_batch(rows, enough, may_pad=may_pad),
            setup=None,
            space=space,
        )
    sizes = [fixed] if fixed is not None else list(_sizes(rows, enough, may_pad=may_pad))
    groups = list(_groups(job, machine, precision, shape, space, sizes))
    tried = [_fitted(group, machine, correction, promise=True) for group in groups]
    if promised := any(fits for _, fits in tried):
        fitting = [candidate for candidate, fits in tried if fits]
    else:
        tried = [_fitted(group, machine, correction, promise=False) for group in groups]
        fitting = [candidate for candidate, fits in tried if fits]
    best = ranked(fitting)[0] if fitting else min((c for c, _ in tried), key=lambda c: c.memory_gib)
    setup = best.setup
    return Chosen(
        strategy=cast(Strategy, setup.layout.sharding),
        offload=setup.layout.offload,
        checkpointing=setup.recipe.checkpointing == "full",
        micro_batch=setup.recipe.micro_batch,
        setup=setup,
        space=space,
        why=_why(job, machine, space, len(tried), fits=promised, likely=bool(fitting)),
        was_open=len(tried) > 1,
    )


def _why(job: Job, machine: Machine, space: Space, tried: int, *, fits: bool, likely: bool) -> str:
    """What decided, in words; a loop of one's own shards by `ctx.shard` or as it likes."""
    own = "; a loop that does not call ctx.shard shards in its own way" if job.recipe else ""
    if tried > 1:
        open_words = [
            word
            for word, options in (
                ("strategy", space.shardings),
                ("activation_checkpointing", space.checkpointings),
                ("offload", {offload for sharding in space.shardings for offload in offloads_of(sharding, space)}),
            )
            if len(options) > 1
        ]
        open_words += ["micro_batch"] if space.micro_batches is None else []
        return f"{why_words(fits=fits, likely=likely)} ({', '.join(open_words)} left open){own}"
    if job.parallelism.strategy_is_open:
        kept = "a CPU pool rehearses ZeRO-3" if machine.is_cpu else "the default where the model is not known"
        return kept + own
    return "as the job says" + own


def _space(job: Job, machine: Machine, shape: ModelShape | None, enough: int) -> Space:
    """What the job leaves open on these machines."""
    asked, wanted = job.parallelism, job.train.activation_checkpointing
    may_choose = shape is not None and not machine.is_cpu
    strategies: tuple[Strategy, ...] = (asked.strategy,)
    if asked.strategy_is_open and may_choose:
        strategies = ("zero3",) if asked.offload == "nvme" else ("zero1", "zero2", "zero3")
    recompute: tuple[Checkpointing, ...] = ("full",) if wanted else ("none",)
    if wanted is None and may_choose and not job.recipe:
        recompute = ("none", "full")
    offloads: tuple[str, ...] = (asked.offload,)
    if asked.offload_is_open and may_choose and machine.host_gib is not None:
        offloads = ("none", "cpu")
    return Space(
        shardings=strategies,
        checkpointings=recompute,
        offloads=offloads,
        micro_batches=None if asked.micro_batch is None else (asked.micro_batch,),
        most_tokens=enough * job.data.seq_len,
    )


def _groups(
    job: Job,
    machine: Machine,
    precision: Literal["fp32", "bf16"],
    shape: ModelShape,
    space: Space,
    sizes: list[int],
) -> Iterator[list[Setup]]:
    """Setups in groups that differ in the micro-batch, the largest first."""
    for sharding in space.shardings:
        for offload in offloads_of(sharding, space):
            layout = Layout(
                accelerators=machine.accelerators,
                per_node=machine.per_node,
                sharding=sharding,
                offload=cast(Offload, offload),
                offload_parameters=offload != "none" and sharding == "zero3",
                stack="hf" if sharding == "ddp" else "deepspeed",
            )
            for checkpointing in space.checkpointings:
                base = Recipe(
                    seq_len=job.data.seq_len,
                    micro_batch=1,
                    global_batch=job.train.global_batch,
                    precision=precision,
                    checkpointing=checkpointing,
                )
                yield [
                    Setup(shape=shape, layout=layout, recipe=_padded(base, size, machine.accelerators))
                    for size in sizes
                ]


def _padded(recipe: Recipe, micro_batch: int, ranks: int) -> Recipe:
    """At an elastic size rows of zero weight fill the last micro-batch: they cost time as the others do."""
    unit = micro_batch * ranks
    return replace(recipe, micro_batch=micro_batch, global_batch=-(-recipe.global_batch // unit) * unit)


def _sizes(rows: int, enough: int, *, may_pad: bool) -> Iterator[int]:
    """Micro-batches from the largest that makes sense down to one row."""
    size = largest_micro_batch(rows, enough, may_pad=may_pad)
    yield size
    while size > 1:
        size = largest_micro_batch(rows, size - 1, may_pad=may_pad)
        yield size


def _fitted(
    group: list[Setup], machine: Machine, correction: Correction | None, *, promise: bool
) -> tuple[Candidate, bool]:
    """The largest micro-batch of a group that fits, else its smallest; and whether it fits."""
    for setup in group:
        needed, fits = quick_memory(setup, machine, correction, promise=promise)
        if fits:
            break
    return Candidate(setup, quick_seconds(setup, machine, correction), needed), fits
