"""Which layouts are legal for a model, a batch and the accelerators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from warpbeam.errors import UserError
from warpbeam.plan.batch import divisors
from warpbeam.plan.model_shape import ModelShape
from warpbeam.plan.setup import Checkpointing, Layout, Recipe, Setup, Sharding, Stack

RUNS_HERE: Final[tuple[Sharding, ...]] = ("ddp", "zero1", "zero2", "zero3")  # what this version's engine can do
CHOSEN_HERE: Final[tuple[Sharding, ...]] = ("zero1", "zero2", "zero3")  # ddp only when somebody asks for it
OURS: Final[tuple[Stack, ...]] = ("deepspeed", "hf")
ACROSS_NODES: Final = "tp_across_nodes"  # the word for `allow`
LEAST_CONTEXT: Final = 1024
"""Tokens of a sequence that a rank of context parallelism has at least."""
OTHER_ENGINE: Final[Stack] = "fsdp"  # for what ours lacks, with sharding "fsdp"


def runs_here(setup: Setup) -> bool:
    """Whether this version of Warpbeam can run it."""
    layout = setup.layout
    plain = layout.tp == layout.pp == layout.cp == layout.ep == 1 and layout.stack in OURS
    recipe = setup.recipe
    whole = recipe.lora is None and recipe.checkpointing != "selective" and recipe.optimizer == "adamw"
    return plain and whole and layout.sharding in RUNS_HERE and recipe.precision in ("bf16", "fp32")


def check_setup(setup: Setup, *, link_domain: int, allow: Sequence[str] = ()) -> None:
    """Refuse what cannot be; plan/nearest.py finds what could be in its place.

    Args:
        link_domain: accelerators that a fast link (NVLink) connects.
        allow: `tp_across_nodes` lets tensor parallelism go over the network.

    Raises:
        UserError: an impossible product, heads, layers, sequence or batch that do not divide.
    """
    layout, shape, recipe = setup.layout, setup.shape, setup.recipe
    model = layout.tp * layout.pp * layout.cp
    if layout.accelerators % model:
        raise UserError(
            f"tp {layout.tp} x pp {layout.pp} x cp {layout.cp} = {model} does not divide "
            f"{layout.accelerators} accelerators",
            why="tp x pp x cp x dp must make exactly the number of accelerators",
            reason="impossible_product",
        )
    if layout.tp > link_domain and ACROSS_NODES not in allow:
        raise UserError(
            f"tp {layout.tp} goes beyond the {link_domain} accelerators that are linked to each other",
            why="every layer would wait for the network several times",
            reason="tp_across_nodes",
        )
    _check_divides("heads", shape.heads, "tp", layout.tp)
    if shape.kv_heads % layout.tp and layout.tp % shape.kv_heads:
        raise _does_not_divide("key-value heads", shape.kv_heads, "tp", layout.tp)
    if not even_stages(shape.layers, layout.pp):
        refused = _does_not_divide("layers", shape.layers, "pp", layout.pp)
        refused.why = f"stages are equally long: of {shape.layers} layers, or of {shape.layers + 2} with both tables"
        raise refused
    if not even_pieces(recipe.seq_len, layout.cp):
        raise UserError(
            f"{recipe.seq_len} tokens of a sequence cannot be split by cp {layout.cp}",
            why=f"a rank takes two equal pieces of a sequence, {LEAST_CONTEXT:,} tokens or more together; with fewer "
            "it waits for the network",
            reason="bad_layout",
        )
    if layout.ep > 1:
        _check_divides("experts", shape.experts, "ep", layout.ep)
        _check_divides("data-parallel ranks", layout.dp * layout.cp * layout.tp, "ep", layout.ep)
    unit = layout.dp * recipe.micro_batch
    if recipe.global_batch % unit:
        by = f"dp {layout.dp}" + (f" x micro_batch {recipe.micro_batch} = {unit}" if recipe.micro_batch > 1 else "")
        raise UserError(
            f"the global batch {recipe.global_batch} does not divide by {by}", reason="batch_does_not_divide"
        )


def even_stages(layers: int, pp: int) -> bool:
    """Whether `pp` stages are equally long; the embedding and the output head may count as a layer each (Llama 3)."""
    return layers % pp == 0 or (layers + 2) % pp == 0


def even_pieces(seq_len: int, cp: int) -> bool:
    """Whether each of `cp` ranks gets two equal pieces (an early and a late one: a causal mask gives them unequal work)
    that are long enough to compute while the next piece arrives.
    """
    return cp == 1 or (seq_len % (2 * cp) == 0 and seq_len // cp >= LEAST_CONTEXT)


def _check_divides(what: str, count: int, name: str, size: int) -> None:
    if count % size:
        raise _does_not_divide(what, count, name, size)


def _does_not_divide(what: str, count: int, name: str, size: int) -> UserError:
    return UserError(f"{count} {what} cannot be split by {name} {size}", reason="bad_layout")


@dataclass(frozen=True, kw_only=True)
class Space:
    """What may be chosen. An empty tuple never occurs: what is fixed has one value.

    Attributes:
        micro_batches: None for every size that divides, up to `most_tokens` of one micro-batch.
        tps, pps, cps, eps, virtuals: sizes to try of those that are legal.
        dp: replicas, where somebody fixed them.
    """

    shardings: tuple[Sharding, ...] = RUNS_HERE
    tps: tuple[int, ...] = (1,)
    pps: tuple[int, ...] = (1,)
    cps: tuple[int, ...] = (1,)
    eps: tuple[int, ...] = (1,)
    virtuals: tuple[int, ...] = (1,)
    micro_batches: tuple[int, ...] | None = None
    checkpointings: tuple[Checkpointing, ...] = ("none", "full")
    offloads: tuple[str, ...] = ("none",)
    most_tokens: int = 65_536
    dp: int | None = None


# What a sharding may keep elsewhere; any other keeps all states on the accelerator.
OFFLOADS: Final[dict[Sharding, tuple[str, ...]]] = {
    "zero1": ("none", "cpu"),
    "zero2": ("none", "cpu"),
    "zero3": ("none", "cpu", "nvme"),
}


def any_engine(most_pp: int = 64) -> Space:
    """Everything that published stacks do: FSDP, and Megatron's tensor, pipeline and context parallelism."""
    return Space(
        shardings=(*CHOSEN_HERE, "fsdp", "distributed_optimizer"),
        tps=(1, 2, 4, 8),
        pps=tuple(range(1, most_pp + 1)),
        cps=(1, 2, 4, 8, 16),
        eps=(1, 2, 4, 8, 16, 32, 64),
        virtuals=(1, 2, 4, 8),
        checkpointings=("none", "selective", "full"),
    )


def families(
    shape: ModelShape, accelerators: int, per_node: int, link_domain: int, recipe: Recipe, space: Space
) -> Iterator[list[Setup]]:
    """All legal setups, in groups that differ in nothing but the micro-batch (ascending)."""
    recipes: dict[tuple[int, Checkpointing], Recipe] = {}

    def with_choice(size: int, checkpointing: Checkpointing) -> Recipe:
        key = size, checkpointing
        if key not in recipes:  # a few, shared by thousands of layouts
            recipes[key] = replace(recipe, micro_batch=size, checkpointing=checkpointing)
        return recipes[key]

    for sharding in space.shardings:
        for tp, pp, cp, ep in _splits(shape, accelerators, link_domain, recipe, space, sharding):
            dp = accelerators // (tp * pp * cp)
            if recipe.global_batch % dp or space.dp not in (None, dp):
                continue
            rows = recipe.global_batch // dp
            sizes = _micro_batches(rows, recipe.seq_len // cp, space)
            for offload, virtual in product(offloads_of(sharding, space), _virtuals(shape.layers, pp, space)):
                layout = Layout(
                    accelerators=accelerators,
                    per_node=min(per_node, accelerators),
                    sharding=sharding,
                    tp=tp,
                    pp=pp,
                    cp=cp,
                    ep=ep,
                    sequence_parallel=tp > 1,
                    virtual_stages=virtual,
                    offload=offload,  # type: ignore[arg-type]
                    offload_parameters=offload != "none" and sharding == "zero3",
                    stack=_stack(sharding),
                )
                for checkpointing in space.checkpointings:
                    if checkpointing == "selective" and layout.stack in OURS:
                        continue
                    yield [Setup(shape=shape, layout=layout, recipe=with_choice(size, checkpointing)) for size in sizes]


def _virtuals(layers: int, pp: int, space: Space) -> list[int]:
    """Chunks of a stage that interleave; only a pipeline has them."""
    return [1] if pp == 1 else [n for n in space.virtuals if n == 1 or even_stages(layers, pp * n)]


def _splits(
    shape: ModelShape, accelerators: int, link_domain: int, recipe: Recipe, space: Space, sharding: Sharding
) -> Iterator[tuple[int, int, int, int]]:
    """Legal (tp, pp, cp, ep) of the space for a sharding."""
    ours = sharding in RUNS_HERE
    for tp in space.tps:
        if tp > 1 and (ours or tp > link_domain or shape.heads % tp or (shape.kv_heads % tp and tp % shape.kv_heads)):
            continue
        for pp in space.pps:
            if pp > 1 and (sharding != "distributed_optimizer" or not even_stages(shape.layers, pp)):
                continue
            for cp in space.cps:
                if cp > 1 and (ours or not even_pieces(recipe.seq_len, cp)):
                    continue
                if accelerators % (tp * pp * cp):
                    continue
                dp = accelerators // (tp * pp * cp)
                for ep in space.eps:
                    if ep > 1 and (ours or shape.experts % ep or (dp * cp) % ep):
                        continue
                    yield tp, pp, cp, ep


def offloads_of(sharding: Sharding, space: Space) -> list[str]:
    """Where the space lets this sharding keep its states."""
    return [offload for offload in space.offloads if offload in OFFLOADS.get(sharding, ("none",))]


def _stack(sharding: Sharding) -> Stack:
    if sharding == "ddp":
        return "hf"  # plain modules, as there
    if sharding in RUNS_HERE:
        return "deepspeed"
    return "megatron" if sharding == "distributed_optimizer" else OTHER_ENGINE


def _micro_batches(rows: int, tokens_per_row: int, space: Space) -> list[int]:
    if space.micro_batches is not None:
        return [size for size in space.micro_batches if rows % size == 0]
    most = max(1, space.most_tokens // tokens_per_row)
    return [size for size in divisors(rows) if size <= most]
