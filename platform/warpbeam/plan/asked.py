"""A question in passing, without any file: a model, accelerators in words, a sequence length, tokens of a step.

What is given stays; the rest is chosen among everything that engines do. Which of it this version runs is marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from warpbeam.errors import UserError
from warpbeam.plan.correction import Correction
from warpbeam.plan.given_shape import NEEDED, OPTIONAL, given_shape
from warpbeam.plan.layouts import ACROSS_NODES, CHOSEN_HERE, RUNS_HERE, Space, any_engine, check_setup, families
from warpbeam.plan.machine import Machine
from warpbeam.plan.model_shape import ModelShape
from warpbeam.plan.question import Question
from warpbeam.plan.setup import Checkpointing, Layout, Lora, Optimizer, Precision, Recipe, Setup, Sharding

STRATEGIES: Final[tuple[Sharding, ...]] = (*RUNS_HERE, "fsdp", "distributed_optimizer")
METHODS: Final = ("pretrain", "sft")
MOST_PP: Final = 128  # nobody cuts a model finer; the search tries every number up to here


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person typed; None is open.

    Attributes:
        global_batch_tokens: of an optimizer step, all ranks together.
        engine: `any`, or `here` for what this version runs.
        base_bits: of the weights frozen under `lora`.
        allow: `tp_across_nodes`.
    """

    seq_len: int
    global_batch_tokens: int
    precision: Precision | None = None
    optimizer: Optimizer | None = None
    attention: str | None = None
    strategy: str | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    micro_batch: int | None = None
    checkpointing: Checkpointing | None = None
    offload: str | None = None
    lora: int | None = None
    base_bits: int | None = None
    engine: str = "any"
    allow: Sequence[str] = ()


def inline_shape(text: str) -> ModelShape:
    """`layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256`. Raises UserError."""
    numbers: dict[str, float] = {}
    names = f"the names are {', '.join([*NEEDED, *OPTIONAL])}"
    for pair in text.replace(" ", "").split(","):
        name, _, value = pair.partition("=")
        if name in numbers:
            raise UserError(f"{name} is given twice", fix=f"leave `{pair}` out", reason="bad_model_shape")
        try:
            numbers[name] = float(value)
        except ValueError:
            raise UserError(f"`{pair}` is no NAME=NUMBER", fix=names, reason="bad_model_shape") from None
    return given_shape(numbers)


def laid_out(
    asked: Asked, shape: ModelShape, machine: Machine, correction: Correction | None = None, *, sized: bool = True
) -> Question:
    """What was asked as a question, once its layout is checked. Raises UserError without the nearest legal values,
    which plan/nearest.py finds by asking again.

    Args:
        sized: for this number of accelerators; False where other numbers will be tried.
    """
    recipe = _recipe(asked, machine)
    _check_split(asked)
    if sized:
        check_setup(_literal(asked, shape, machine, recipe), link_domain=machine.link_domain, allow=asked.allow)
        _check_dp(asked, machine)
    if asked.tp is not None and asked.tp > machine.link_domain and ACROSS_NODES in asked.allow:
        machine = replace(machine, link_domain=asked.tp)
    found = Question(
        shape=shape,
        recipe=recipe,
        machine=machine,
        space=_space(asked, shape, machine),
        correction=correction,
        in_passing=True,
        here_only=asked.engine == "here",
    )
    if sized and not has_layout(found):
        raise UserError(
            f"no legal layout shares {recipe.global_batch} sequences among {machine.accelerators} accelerators "
            "with what is fixed",
            reason="batch_does_not_divide",
        )
    return found


def has_layout(found: Question) -> bool:
    """Whether anything at all is legal, fitting or not."""
    there = found.machine
    groups = families(found.shape, there.accelerators, there.per_node, there.link_domain, found.recipe, found.space)
    return any(groups)


def _recipe(asked: Asked, machine: Machine) -> Recipe:
    lora = None if asked.lora is None else Lora(rank=asked.lora, base_bits=cast(Any, asked.base_bits))
    if asked.global_batch_tokens % asked.seq_len or asked.global_batch_tokens < asked.seq_len:
        raise UserError(
            f"{asked.global_batch_tokens} tokens are no whole number of sequences of {asked.seq_len}",
            reason="batch_does_not_divide",
        )
    return Recipe(
        seq_len=asked.seq_len,
        micro_batch=asked.micro_batch or 1,
        global_batch=asked.global_batch_tokens // asked.seq_len,
        precision=asked.precision or ("fp32" if machine.is_cpu else "bf16"),
        optimizer=asked.optimizer or "adamw",
        checkpointing=asked.checkpointing or "none",
        eager_attention=asked.attention == "eager",
        lora=lora,
    )


def _check_split(asked: Asked) -> None:
    """Splits of the model, offload and recomputing, and the strategies that know them."""
    if asked.engine == "here" and asked.strategy not in (None, *RUNS_HERE):
        raise UserError(f"this version does not run strategy {asked.strategy}", reason="bad_strategy")
    piped = asked.pp is not None and asked.pp > 1
    split = [name for name in ("pp", "tp", "cp", "ep") if (getattr(asked, name) or 1) > 1]
    if split and (asked.engine == "here" or asked.strategy in RUNS_HERE):
        raise UserError(
            f"{split[0]} {getattr(asked, split[0])} goes with {'' if piped else 'fsdp or '}distributed_optimizer",
            why="this version's own strategies split the batch only",
            reason="bad_layout",
        )
    if asked.strategy == "fsdp" and piped:
        raise UserError(f"pp {asked.pp} goes with distributed_optimizer", reason="bad_layout")
    if asked.strategy not in (None, "zero1", "zero2", "zero3") and asked.offload in ("cpu", "nvme"):
        raise UserError(f"offload {asked.offload} goes with zero1, zero2 or zero3", reason="bad_layout")
    if asked.strategy in ("zero1", "zero2") and asked.offload == "nvme":
        raise UserError("offload nvme goes with zero3", reason="bad_layout")
    if asked.checkpointing == "selective" and (asked.engine == "here" or asked.strategy in RUNS_HERE):
        raise UserError(
            "checkpointing selective goes with fsdp or distributed_optimizer",
            why="this version recomputes all activations of a layer, or none",
            reason="bad_layout",
        )


def _literal(asked: Asked, shape: ModelShape, machine: Machine, recipe: Recipe) -> Setup:
    """What was typed as a layout, so that it can be checked; what is open is 1."""
    sizes: dict[str, Any] = {name: getattr(asked, name) or 1 for name in ("tp", "pp", "cp", "ep")}
    layout = Layout(
        accelerators=machine.accelerators, per_node=machine.per_node, sharding="distributed_optimizer", **sizes
    )
    closed = all(getattr(asked, name) is not None for name in ("tp", "pp", "cp")) or asked.engine == "here"
    if not closed:  # more of the model may be split: dp is at most this, so nothing to check against the batch yet
        return Setup(shape=shape, layout=layout, recipe=replace(recipe, global_batch=layout.dp * recipe.micro_batch))
    return Setup(shape=shape, layout=layout, recipe=recipe)


def _check_dp(asked: Asked, machine: Machine) -> None:
    if asked.dp is None:
        return
    model = (asked.tp or 1) * (asked.pp or 1) * (asked.cp or 1)
    closed = None not in (asked.tp, asked.pp, asked.cp)
    if model * asked.dp != machine.accelerators if closed else machine.accelerators % (model * asked.dp):
        words = f"tp {asked.tp or 1} x pp {asked.pp or 1} x cp {asked.cp or 1} x dp {asked.dp} = {model * asked.dp}"
        raise UserError(f"{words}, there are {machine.accelerators} accelerators", reason="impossible_product")


def _space(asked: Asked, shape: ModelShape, machine: Machine) -> Space:
    wide = any_engine(min(shape.layers, MOST_PP)) if asked.engine == "any" else Space(shardings=CHOSEN_HERE)
    if machine.host_gib is not None and not machine.is_cpu:  # as plan/job_choice.py: slower, so only where needed
        wide = replace(wide, offloads=("none", "cpu"))
    if asked.strategy is None and machine.is_cpu:
        wide = replace(wide, shardings=("zero3",))
    fixed: Mapping[str, Any] = {
        "tps": asked.tp,
        "pps": asked.pp,
        "cps": asked.cp,
        "eps": asked.ep,
        "micro_batches": asked.micro_batch,
        "checkpointings": asked.checkpointing,
        "offloads": asked.offload,
        "shardings": cast(Sharding | None, asked.strategy),
    }
    given: dict[str, Any] = {name: (value,) for name, value in fixed.items() if value is not None}
    return replace(wide, dp=asked.dp, **given)
