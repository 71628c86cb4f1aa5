"""The plan: a job on a pool, worked out before anything is spent, and the same on the laptop, in CI and in the pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, cast

from warpbeam.errors import UserError
from warpbeam.job import Job, Range
from warpbeam.plan.answer import Answer, Question, answer
from warpbeam.plan.batch import accumulation_steps, divisors, legal_world_sizes, nearest_multiples
from warpbeam.plan.config_keys import idle_notes, nearest_family
from warpbeam.plan.correction import Correction
from warpbeam.plan.deepspeed_config import deepspeed_config
from warpbeam.plan.forecast import memory_of
from warpbeam.plan.job_choice import Chosen, choose_for_job
from warpbeam.plan.machine import Machine, machine_of
from warpbeam.plan.memory import MemorySum
from warpbeam.plan.model_shape import ModelShape, default_notes, is_known, model_shape
from warpbeam.plan.report import lack_words
from warpbeam.plan.setup import Layout, Recipe, Setup, Sharding
from warpbeam.pool import Pool

PLAN_SCHEMA: Final = "warpbeam/plan/v1"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will run.

    Attributes:
        accumulation: micro-batches a rank computes for one optimizer step.
        tokens_per_step: of the global batch, padding included.
        parameters: None where the model is not known yet (weights not read, or an unknown family).
        deepspeed: the config exactly as the engine gets it; None for ddp.
        legal_world_sizes: those of the pool that share the global batch without padding.
        steps: optimizer steps to the end; None while nobody can tell.
        steps_estimated: the data decides, and preparation has yet to count it.
        answer: memory and time in parts, why this was chosen, what else would do; None where the model is not known.
        activation_checkpointing: activations are computed again in the backward pass.
        why: what decided the strategy, in words.
        was_open: the job left something of it to the plan.
        notes: sizes of the model that nobody stated.
    """

    run: str
    team: str
    method: str
    accelerator: str
    world_size: int
    strategy: str
    offload: str
    precision: Literal["fp32", "bf16"]
    micro_batch: int
    accumulation: int
    global_batch: int
    seq_len: int
    tokens_per_step: int
    parameters: int | None
    deepspeed: dict[str, Any] | None
    memory: MemorySum | None
    legal_world_sizes: tuple[int, ...]
    warnings: tuple[str, ...]
    steps: int | None = None
    steps_estimated: bool = False
    answer: Answer | None = None
    activation_checkpointing: bool = False
    why: str = "as the job says"
    was_open: bool = False
    notes: tuple[str, ...] = ()

    @property
    def padded_batch(self) -> int:
        """Rows in an optimizer step with those of zero weight (more than global_batch only at an elastic size)."""
        return self.world_size * self.micro_batch * self.accumulation

    @property
    def fits(self) -> bool | None:
        """Whether the promise holds: the expected peak and its margin; None where memory is not known."""
        return None if self.answer is None else self.answer.chosen.fits

    @property
    def cannot_fit(self) -> bool:
        """No promise holds, and it will more likely run out of memory than not."""
        return self.answer is not None and not self.answer.chosen.fits and not self.answer.chosen.likely

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` reads it back."""
        value = {field.name: getattr(self, field.name) for field in fields(self)}
        value |= {"schema": PLAN_SCHEMA, "memory": self.memory.to_dict() if self.memory else None}
        value |= {"answer": self.answer.to_dict() if self.answer else None}
        return (
            value
            | {"legal_world_sizes": list(self.legal_world_sizes), "warnings": list(self.warnings)}
            | {"notes": list(self.notes)}
        )

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Plan:
        known = {field.name: value[field.name] for field in fields(cls) if field.name in value}
        return cls(
            **known
            | {
                "memory": MemorySum.from_dict(value["memory"]) if value["memory"] else None,
                "answer": Answer.from_dict(value["answer"]) if value.get("answer") else None,
                "legal_world_sizes": tuple(value["legal_world_sizes"]),
                "warnings": tuple(value["warnings"]),
                "notes": tuple(value.get("notes", ())),
            }
        )


def make_plan(
    job: Job,
    pool: Pool,
    *,
    world_size: int | None = None,
    model_config: dict[str, Any] | None = None,
    elastic: bool = False,
    correction: Correction | None = None,
    rows: int | None = None,
) -> Plan:
    """Work out how `job` runs on `pool`. Pure.

    Args:
        world_size: the launcher's, which wins over the job's (torchrun 2 on a 16-GPU job is planned as 2).
        model_config: config.json of a model the job names by path, where the caller has read it.
        elastic: a size that came about by failure or growth: padding is allowed.
        correction: what finished runs on this pool taught.
        rows: of one epoch, where somebody has counted or estimated them.

    Raises:
        UserError: the pool has too few accelerators, one that the catalogue lacks, or the batch does not divide; with
            the nearest legal values.
    """
    ranks = world_size if world_size is not None else asked_world_size(job, pool)
    precision = _precision(job, pool)
    config = None if job.code.model else model_config if model_config is not None else scratch_config(job)
    shape = model_shape(config) if config is not None and is_known(config) else None
    _check_positions(job, shape)
    fixed = job.parallelism.micro_batch
    if not elastic and job.train.global_batch % (ranks * (fixed or 1)):
        raise _does_not_divide(job, pool, ranks)
    machine = machine_of(pool, ranks)
    chosen = choose_for_job(job, machine, precision, shape, may_pad=elastic, correction=correction)
    found = _answer(chosen, machine, correction) if chosen.setup is not None else None
    accumulation = accumulation_steps(job.train.global_batch, ranks, chosen.micro_batch)
    memory = memory_of(chosen.setup, machine) if chosen.setup is not None else None
    return Plan(
        run=job.name,
        team=job.team,
        method=job.recipe or job.train.method,
        accelerator=pool.accelerator.kind,
        world_size=ranks,
        strategy=chosen.strategy,
        offload=chosen.offload,
        precision=precision,
        micro_batch=chosen.micro_batch,
        accumulation=accumulation,
        global_batch=job.train.global_batch,
        seq_len=job.data.seq_len,
        tokens_per_step=job.train.global_batch * job.data.seq_len,
        parameters=shape.parameters if shape else None,
        deepspeed=None if chosen.strategy == "ddp" else _deepspeed(job, pool, ranks, precision, chosen, accumulation),
        memory=memory,
        legal_world_sizes=legal_world_sizes(job.train.global_batch, fixed, pool.max_ranks),
        warnings=tuple(_warnings(job, pool, machine, precision, config, shape, found)),
        steps=total_steps(job, rows),
        steps_estimated=total_steps(job, rows) != job.train.max_steps,
        answer=found,
        activation_checkpointing=chosen.checkpointing,
        why=chosen.why,
        was_open=chosen.was_open,
        notes=_notes(config, _config_name(job)) if shape is not None and config is not None else (),
    )


def _config_name(job: Job) -> str:
    """Where a person finds the model's sizes."""
    return "model.config" if job.model.path is None else f"{job.model.path}/config.json"


def plan_setup(job: Job, pool: Pool, plan: Plan, model_config: dict[str, Any] | None) -> Setup | None:
    """The plan as a setup to predict; None where the model is not known."""
    config = None if job.code.model else model_config if model_config is not None else scratch_config(job)
    if config is None or not is_known(config):
        return None
    machine = machine_of(pool, plan.world_size)
    layout = Layout(
        accelerators=plan.world_size,
        per_node=machine.per_node,
        sharding=cast(Sharding, plan.strategy),
        offload=cast(Literal["none", "cpu", "nvme"], plan.offload),
        offload_parameters=plan.offload != "none" and plan.strategy == "zero3",
        stack="hf" if plan.strategy == "ddp" else "deepspeed",
    )
    recipe = Recipe(
        seq_len=plan.seq_len,
        micro_batch=plan.micro_batch,
        global_batch=plan.padded_batch,
        precision=plan.precision,
        checkpointing="full" if plan.activation_checkpointing else "none",
    )
    return Setup(shape=model_shape(config), layout=layout, recipe=recipe)


def total_steps(job: Job, rows: int | None) -> int | None:
    """Optimizer steps to the end; None where only the data can say. The last step of a run may be cut short."""
    by_epochs = None
    if job.train.epochs is not None and rows is not None:
        by_epochs = max(1, int(job.train.epochs * rows / job.train.global_batch))
    if job.train.epochs is not None and by_epochs is None and job.train.max_steps is None:
        return None
    return min(limit for limit in (job.train.max_steps, by_epochs) if limit is not None)


def _answer(chosen: Chosen, machine: Machine, correction: Correction | None) -> Answer:
    setup = chosen.setup
    assert setup is not None
    question = Question(
        shape=setup.shape,
        recipe=setup.recipe,
        machine=machine,
        space=chosen.space,
        correction=correction,
        look_back=1,
    )
    return answer(question, setup)


def asked_world_size(job: Job, pool: Pool) -> int:
    """The ranks a job asks for: its number, or the most of its range that the pool has and that share the batch."""
    asked, there = job.resources.accelerators, pool.max_ranks
    least = asked.min if isinstance(asked, Range) else asked
    if least > there:
        each = f"{pool.accelerators_per_node} {pool.accelerator.kind} accelerators each"
        if pool.is_cpu:
            each = f"{pool.accelerators_per_node} CPU cores each, and a rank takes {pool.cpus_per_worker:g}"
        raise UserError(
            f"resources.accelerators asks for {least}, the pool `{pool.name}` has {there}",
            why=f"it has {pool.nodes} node(s) with {each}",
            fix=f"write `accelerators: {there}` or less, or choose another pool (--pool)",
            reason="too_few_accelerators",
        )
    if not isinstance(asked, Range):
        return asked
    legal = legal_world_sizes(job.train.global_batch, job.parallelism.micro_batch, min(asked.max, there))
    if not legal or legal[-1] < least:
        raise _does_not_divide(job, pool, least)
    return legal[-1]


def _does_not_divide(job: Job, pool: Pool, ranks: int) -> UserError:
    micro_batch = job.parallelism.micro_batch or 1
    unit = ranks * micro_batch
    batches = " or ".join(f"`global_batch: {near}`" for near in nearest_multiples(job.train.global_batch, unit))
    sizes = legal_world_sizes(job.train.global_batch, micro_batch, pool.max_ranks)  # what `run` takes too
    nearby = sorted(sorted(sizes, key=lambda size: abs(size - ranks))[:3])
    by = f"{ranks} ranks" if micro_batch == 1 else f"{ranks} ranks x micro_batch {micro_batch} = {unit}"
    fix = f"write {batches}"
    if micro_batch > 1 and job.train.global_batch % ranks == 0:
        rows = sorted(divisors(job.train.global_batch // ranks), key=lambda size: abs(size - micro_batch))[:2]
        fix += f", or {' or '.join(f'`micro_batch: {size}`' for size in sorted(rows))}"
    if nearby:
        fix += f", or keep it and use {' or '.join(map(str, nearby))} accelerator{'' if nearby == [1] else 's'}"
    return UserError(
        f"train.global_batch {job.train.global_batch} does not divide by {by}", fix=fix, reason="batch_does_not_divide"
    )


def _check_positions(job: Job, shape: ModelShape | None) -> None:
    if shape and shape.learned_positions and shape.positions and job.data.seq_len > shape.positions:
        raise UserError(
            f"data.seq_len {job.data.seq_len} is longer than the {shape.positions} positions of the model",
            why=f"{shape.family} has a parameter for each position, and none beyond them",
            fix=f"write `seq_len: {shape.positions}` or less",
            reason="too_few_positions",
        )


def _precision(job: Job, pool: Pool) -> Literal["fp32", "bf16"]:
    if job.train.precision == "auto":
        return "fp32" if pool.is_cpu else "bf16"
    return job.train.precision


def _warnings(
    job: Job,
    pool: Pool,
    machine: Machine,
    precision: str,
    config: dict[str, Any] | None,
    shape: ModelShape | None,
    found: Answer | None,
) -> Iterator[str]:
    """What works, but not as well as it looks."""
    cores, ranks = pool.accelerators, machine.accelerators
    if ranks > pool.max_ranks:
        there = f"{pool.max_ranks} {'ranks' if pool.is_cpu else 'accelerators'}"
        yield f"{ranks} are asked about, the pool `{pool.name}` has {there}: `run` and `submit` refuse it"
    if pool.is_cpu and ranks > cores:
        yield f"{ranks} ranks share {cores} CPU cores: it works, but no faster than {cores}"
    if precision == "bf16" and pool.is_cpu:
        yield "bf16 on CPUs is slower than fp32 on most of them"
    if precision == "bf16" and not pool.is_cpu and not machine.chip.peak_bf16:
        yield f"{machine.chip.name} has no bf16 units: write `precision: fp32`"
    if config is not None and not is_known(config):
        family = config.get("model_type")
        near = nearest_family(family)
        meant = f" (did you mean `{near}`?)" if near else ""
        yield (
            f"the planner does not know the model family {family!r}{meant}: memory and time are not in the plan "
            "(`warpbeam plan --model layers=32,hidden=4096,...` asks by its numbers)"
        )
    if shape and shape.positions and job.data.seq_len > shape.positions:
        yield f"seq_len {job.data.seq_len} is longer than the model's max_position_embeddings ({shape.positions})"
    if found is not None and not found.chosen.fits:
        now = found.chosen
        will = "may run out of memory" if now.likely else "will run out of memory"
        yield f"{lack_words(now, with_margin=True)}: it {will}"


def _notes(config: Mapping[str, Any], where: str) -> tuple[str, ...]:
    return (*default_notes(config, where), *idle_notes(config, where))


def scratch_config(job: Job) -> dict[str, Any] | None:
    """The config of a model from scratch, with the vocabulary of the tokenizer to train where it names none."""
    config, tokenizer = job.model.config, job.model.tokenizer
    if config is None or "vocab_size" in config or tokenizer is None or isinstance(tokenizer, str):
        return config
    return config | {"vocab_size": tokenizer.train.vocab_size}


def _deepspeed(
    job: Job, pool: Pool, ranks: int, precision: Literal["fp32", "bf16"], chosen: Chosen, accumulation: int
) -> dict[str, Any]:
    return deepspeed_config(
        stage=cast(Literal[1, 2, 3], int(chosen.strategy.removeprefix("zero"))),
        micro_batch=chosen.micro_batch,
        accumulation=accumulation,
        world_size=ranks,
        clip=job.train.clip,
        precision=precision,
        on_cpu=pool.is_cpu,
        offload=chosen.offload,
        offload_path=f"{pool.local_disk}/offload" if chosen.offload == "nvme" else None,
    )
