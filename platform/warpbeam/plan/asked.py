"""A question in passing, without any file: a model, accelerators in words, a sequence length, tokens of a step.

What is given stays; the rest is chosen among everything that engines do. Which of it this version runs is marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from warpbeam.errors import UserError
from warpbeam.plan.answer import Question
from warpbeam.plan.batch import nearest_multiples
from warpbeam.plan.correction import Correction
from warpbeam.plan.layouts import ACROSS_NODES, RUNS_HERE, Space, any_engine, check_setup, nearest_values
from warpbeam.plan.machine import Machine
from warpbeam.plan.model_shape import NEEDED, OPTIONAL, ModelShape, given_shape
from warpbeam.plan.setup import Checkpointing, Layout, Lora, Precision, Recipe, Setup, Sharding

STRATEGIES: Final[tuple[Sharding, ...]] = (*RUNS_HERE, "fsdp", "distributed_optimizer")
METHODS: Final = ("pretrain", "sft")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person typed; None is open.

    Attributes:
        global_batch_tokens: of an optimizer step, all ranks together.
        engine: `any`, or `here` for what this version runs.
        allow: `tp_across_nodes`.
    """

    seq_len: int
    global_batch_tokens: int
    precision: Precision | None = None
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
    engine: str = "any"
    allow: Sequence[str] = ()


def inline_shape(text: str) -> ModelShape:
    """`layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256`. Raises UserError."""
    numbers: dict[str, float] = {}
    for pair in text.replace(" ", "").split(","):
        name, _, value = pair.partition("=")
        try:
            numbers[name] = float(value)
        except ValueError:
            raise UserError(
                f"`{pair}` is no NAME=NUMBER",
                fix=f"the names are {', '.join([*NEEDED, *OPTIONAL])}",
                reason="bad_model_shape",
            ) from None
    return given_shape(numbers)


def question(asked: Asked, shape: ModelShape, machine: Machine, correction: Correction | None = None) -> Question:
    """What was asked, checked. Raises UserError with the nearest legal values."""
    batch = _sequences(asked)
    precision = asked.precision or ("fp32" if machine.is_cpu else "bf16")
    lora = None if asked.lora is None else Lora(rank=asked.lora)
    recipe = Recipe(
        seq_len=asked.seq_len,
        micro_batch=asked.micro_batch or 1,
        global_batch=batch,
        precision=precision,
        checkpointing=asked.checkpointing or "none",
        lora=lora,
    )
    _check_strategy(asked)
    check_setup(_literal(asked, shape, machine, recipe), link_domain=machine.link_domain, allow=asked.allow)
    _check_dp(asked, machine)
    if asked.tp is not None and asked.tp > machine.link_domain and ACROSS_NODES in asked.allow:
        machine = replace(machine, link_domain=asked.tp)
    return Question(
        shape=shape, recipe=recipe, machine=machine, space=_space(asked, shape, machine), correction=correction
    )


def _sequences(asked: Asked) -> int:
    if asked.seq_len < 1:
        raise UserError(f"--seq-len is {asked.seq_len}", fix="write 1 or more, for example 8192", reason="bad_input")
    if asked.global_batch_tokens % asked.seq_len or asked.global_batch_tokens < asked.seq_len:
        near = nearest_multiples(asked.global_batch_tokens, asked.seq_len) or (asked.seq_len,)
        raise UserError(
            f"{asked.global_batch_tokens} tokens are no whole number of sequences of {asked.seq_len}",
            fix=f"write `--global-batch-tokens {' or '.join(map(str, near))}`",
            reason="batch_does_not_divide",
        )
    return asked.global_batch_tokens // asked.seq_len


def _check_strategy(asked: Asked) -> None:
    known = RUNS_HERE if asked.engine == "here" else STRATEGIES
    if asked.strategy is not None and asked.strategy not in known:
        raise UserError(
            f"there is no strategy `{asked.strategy}`", fix=f"there are {', '.join(known)}", reason="bad_strategy"
        )
    split = [name for name in ("tp", "pp", "cp", "ep") if (getattr(asked, name) or 1) > 1]
    if split and (asked.engine == "here" or asked.strategy in RUNS_HERE):
        raise UserError(
            f"{split[0]} {getattr(asked, split[0])} goes with fsdp or distributed_optimizer",
            why="this version's own strategies split the batch only",
            fix="leave --strategy and --engine out, or write `--strategy distributed_optimizer`",
            reason="bad_layout",
        )
    if asked.strategy == "fsdp" and (asked.pp or 1) > 1:
        raise UserError(
            f"pp {asked.pp} goes with distributed_optimizer",
            fix="write `--strategy distributed_optimizer`, or `--pp 1`",
            reason="bad_layout",
        )


def _literal(asked: Asked, shape: ModelShape, machine: Machine, recipe: Recipe) -> Setup:
    """What was typed as a layout, so that it can be checked; what is open is 1."""
    sizes: dict[str, Any] = {name: getattr(asked, name) or 1 for name in ("tp", "pp", "cp", "ep")}
    for name in (*sizes, "dp", "micro_batch"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise UserError(f"{name} is {value}", fix=f"write 1 or more for {name}", reason="bad_layout")
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
    wrong = model * asked.dp != machine.accelerators if closed else machine.accelerators % (model * asked.dp)
    if wrong:
        fits = machine.accelerators // model
        legal = [n for n in range(1, fits + 1) if fits % n == 0]
        near = [fits] if closed else nearest_values(asked.dp, legal)
        words = f"tp {asked.tp or 1} x pp {asked.pp or 1} x cp {asked.cp or 1} x dp {asked.dp} = {model * asked.dp}"
        raise UserError(
            f"{words}, there are {machine.accelerators} accelerators",
            fix=f"write `--dp {' or '.join(map(str, near))}`, or use {model * asked.dp} accelerators",
            reason="impossible_product",
        )


def _space(asked: Asked, shape: ModelShape, machine: Machine) -> Space:
    wide = any_engine(min(shape.layers, 128)) if asked.engine == "any" else Space()
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
    if machine.is_cpu and asked.strategy is None:
        given["shardings"] = ("zero3",)
    return replace(wide, dp=asked.dp, **given)
