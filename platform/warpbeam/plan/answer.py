"""The whole answer to a planner's question: what was chosen and why, what else would do, and what would help.

A question is a model, a recipe and machines, with what is fixed (plan/layouts.py's Space). A job is such a question
with this version's own strategies; a question in passing may ask about every engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

from warpbeam.plan.correction import Correction
from warpbeam.plan.forecast import Forecast, forecast, quick_memory, quick_seconds
from warpbeam.plan.layouts import RUNS_HERE, Space, any_engine, families, runs_here
from warpbeam.plan.machine import Machine
from warpbeam.plan.model_shape import ModelShape
from warpbeam.plan.search import Candidate, Choice, choose
from warpbeam.plan.setup import Checkpointing, Layout, Lora, Recipe, Setup

ALTERNATIVES: Final = 3
WORTH_SAYING: Final = 0.03  # a smaller gain is within what the prediction knows
WAYS_TO_FIT: Final = 4
NOT_RUN: Final = "not run by this version"
MOST_ACCELERATORS: Final = 65_536


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        recipe: its micro-batch and checkpointing are the space's to choose.
        space: what may be chosen for the answer.
    """

    shape: ModelShape
    recipe: Recipe
    machine: Machine
    space: Space
    correction: Correction | None = None

    def best_setup(self) -> Setup | None:
        """The fastest whose promise holds; else the fastest that will likely run; else what needs least memory. None
        where no layout is legal."""
        found = self.search()
        if found.best is None:
            found = self.search(promise=False)
        return found.best.setup if found.best else found.nearest

    def search(
        self,
        space: Space | None = None,
        *,
        recipe: Recipe | None = None,
        machine: Machine | None = None,
        promise: bool = True,
    ) -> Choice:
        """The best setups of a space (default: the question's own)."""
        there, asked = machine or self.machine, recipe or self.recipe
        groups = families(self.shape, there.accelerators, there.per_node, there.link_domain, asked, space or self.space)
        return choose(
            groups,
            memory=partial(quick_memory, machine=there, correction=self.correction, promise=promise),
            seconds=partial(quick_seconds, machine=there, correction=self.correction),
        )

    def forecast(self, setup: Setup) -> Forecast:
        """Predict one setup on the question's machines."""
        return forecast(setup, self.machine, self.correction)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change and what it would bring.

    Attributes:
        text: what to write or to do.
        gain: tokens/s more, as a fraction; None where it is about fitting.
        runs_here: this version could do it.
    """

    text: str
    runs_here: bool
    memory_gib: float
    tokens_per_s: float
    gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is printed.

    Attributes:
        chosen: the setup that will run (or would); where nothing fits, the one that lacks least.
        stages: each strategy of this version at its best micro-batch: why the choice is what it is.
        alternatives: the best others.
        help_most: the one change that would speed it up most.
        would_fit: where nothing fits: changes that would, the smallest first.
        ours: where this version cannot run what was chosen: the best that it can.
    """

    chosen: Forecast
    stages: tuple[Forecast, ...]
    alternatives: tuple[Forecast, ...]
    help_most: Change | None
    would_fit: tuple[Change, ...]
    considered: int
    ours: Forecast | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` reads it back."""
        return {
            "chosen": self.chosen.to_dict(),
            "stages": [found.to_dict() for found in self.stages],
            "alternatives": [found.to_dict() for found in self.alternatives],
            "help_most": asdict(self.help_most) if self.help_most else None,
            "would_fit": [asdict(change) for change in self.would_fit],
            "considered": self.considered,
            "ours": self.ours.to_dict() if self.ours else None,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Answer:
        return cls(
            chosen=Forecast.from_dict(value["chosen"]),
            stages=tuple(map(Forecast.from_dict, value["stages"])),
            alternatives=tuple(map(Forecast.from_dict, value["alternatives"])),
            help_most=Change(**value["help_most"]) if value["help_most"] else None,
            would_fit=tuple(Change(**change) for change in value["would_fit"]),
            considered=value["considered"],
            ours=Forecast.from_dict(value["ours"]) if value["ours"] else None,
        )


def answer(question: Question, setup: Setup | None = None) -> Answer:
    """Choose (or take `setup` as chosen already), and look around it. Pure."""
    found = question.search()
    chosen = setup or question.best_setup() or smallest(question)
    predicted = question.forecast(chosen)
    wide = any_engine(question.shape.layers) if not question.machine.is_cpu else Space()
    around = question.search(replace(wide, most_tokens=question.space.most_tokens))
    ours = around.first(here=True)
    return Answer(
        chosen=predicted,
        stages=tuple(_stages(question)),
        alternatives=tuple(_alternatives(question, chosen, around)),
        help_most=_help_most(question, chosen, predicted, around) if predicted.fits else None,
        would_fit=() if predicted.fits else tuple(_would_fit(question, chosen, around))[:WAYS_TO_FIT],
        considered=found.considered + around.considered,
        ours=None if predicted.runs_here or ours is None else question.forecast(ours.setup),
    )


def smallest(question: Question) -> Setup:
    """A setup to talk about where no legal one was found: fully sharded, one row at a time."""
    machine = question.machine
    layout = Layout(accelerators=machine.accelerators, per_node=machine.per_node, sharding="zero3")
    return Setup(
        shape=question.shape, layout=layout, recipe=replace(question.recipe, micro_batch=1, checkpointing="full")
    )


def _stages(question: Question) -> Iterator[Forecast]:
    """This version's strategies side by side, without offload, as the recipe checkpoints or not."""
    base = question.space
    for sharding in RUNS_HERE:
        space = Space(
            shardings=(sharding,),
            checkpointings=tuple(c for c in base.checkpointings if c != "selective"),
            most_tokens=base.most_tokens,
            micro_batches=base.micro_batches,
        )
        found = question.search(space)
        if found.best is None:
            found = question.search(space, promise=False)
        setup = found.best.setup if found.best else found.nearest
        if setup is not None:
            yield question.forecast(setup)


def _alternatives(question: Question, chosen: Setup, around: Choice) -> Iterator[Forecast]:
    """The fastest others: two that this version runs and one that it does not, if there are such."""
    seen, others = {_key(chosen)}, []
    for candidate in around.ranked:
        key = _key(candidate.setup)
        if key not in seen:
            seen.add(key)
            others.append(candidate)
    here = [c for c in others if runs_here(c.setup)][:ALTERNATIVES]
    elsewhere = [c for c in others if not runs_here(c.setup)][:ALTERNATIVES]
    foreign = elsewhere[: max(1, ALTERNATIVES - len(here))]
    picked = [*here[: ALTERNATIVES - len(foreign)], *foreign]
    for candidate in sorted(picked, key=lambda candidate: candidate.step_s):
        yield question.forecast(candidate.setup)


def _key(setup: Setup) -> tuple[object, ...]:
    """What makes two setups different enough to be told apart in a list of three."""
    layout = setup.layout
    return layout.sharding, layout.tp, layout.pp, layout.ep, layout.offload


def _help_most(question: Question, chosen: Setup, now: Forecast, around: Choice) -> Change | None:
    """The single change with the largest gain in tokens/s on the same accelerators."""
    for changes in (_single_changes(question, chosen, around, now), _larger_batch(question, chosen)):
        best = max(changes, key=lambda change: change.tokens_per_s, default=None)
        gain = best.tokens_per_s / now.tokens_per_s - 1 if best is not None else 0.0
        if best is not None and gain >= WORTH_SAYING:
            return replace(best, gain=gain)
    return None


def _as_it_is(question: Question, chosen: Setup) -> Space:
    """Everything fixed but the micro-batch."""
    layout = chosen.layout
    return Space(
        shardings=(layout.sharding,),
        tps=(layout.tp,),
        pps=(layout.pp,),
        cps=(layout.cp,),
        eps=(layout.ep,),
        virtuals=(layout.virtual_stages,),
        offloads=(layout.offload,),
        checkpointings=(chosen.recipe.checkpointing,),
        most_tokens=question.space.most_tokens,
    )


def _single_changes(question: Question, chosen: Setup, around: Choice, now: Forecast) -> Iterator[Change]:
    layout, recipe = chosen.layout, chosen.recipe
    fixed = _as_it_is(question, chosen)
    for sharding in RUNS_HERE if layout.sharding in RUNS_HERE else ():
        if sharding != layout.sharding and layout.offload == "none":
            yield from _one(question, replace(fixed, shardings=(sharding,)), f"`strategy: {sharding}`")
    if layout.offload != "none":
        yield from _one(question, replace(fixed, offloads=("none",)), "`offload: none`")
    other: Checkpointing = "none" if recipe.checkpointing != "none" else "full"
    word = "true" if other == "full" else "false"
    yield from _one(question, replace(fixed, checkpointings=(other,)), f"`activation_checkpointing: {word}`")
    for change in _one(question, fixed, ""):
        if change.text != f"micro_batch {recipe.micro_batch}":
            yield replace(change, text=f"`micro_batch: {change.text.removeprefix('micro_batch ')}`")
    foreign = around.first(here=False)
    if foreign is not None and not now.runs_here:
        best = question.forecast(foreign.setup)
        yield _change(f"{best.strategy}, {checkpointing_words(best)} ({NOT_RUN})", best)


def _larger_batch(question: Question, chosen: Setup) -> Iterator[Change]:
    larger = replace(chosen.recipe, global_batch=2 * chosen.recipe.global_batch)
    text = f"a global batch of {larger.global_batch} sequences (another experiment: the learning rate must follow)"
    yield from _one(question, _as_it_is(question, chosen), text, recipe=larger)


def _one(question: Question, space: Space, text: str, *, recipe: Recipe | None = None) -> Iterator[Change]:
    best = question.search(space, recipe=recipe).best
    if best is not None:
        now = question.forecast(best.setup)
        yield _change(text or f"micro_batch {now.micro_batch}", now)


def _would_fit(question: Question, chosen: Setup, around: Choice) -> Iterator[Change]:
    """Changes after which it fits, from the smallest to the largest."""
    layout, recipe = chosen.layout, chosen.recipe
    ours = layout.sharding if layout.sharding in RUNS_HERE else "zero3"
    kept = Space(
        shardings=(ours,),
        checkpointings=(recipe.checkpointing,),
        offloads=(layout.offload,),
        most_tokens=recipe.seq_len,
    )
    yield from _one(question, replace(kept, micro_batches=(1,)), "`micro_batch: 1`") if recipe.micro_batch > 1 else ()
    recompute = replace(kept, checkpointings=("full",))
    if recipe.checkpointing != "full":
        yield from _one(question, recompute, "`activation_checkpointing: true`")
    for sharding in RUNS_HERE[RUNS_HERE.index(ours) + 1 :]:
        here = list(_one(question, replace(kept, shardings=(sharding,)), f"`strategy: {sharding}`"))
        both = f"`strategy: {sharding}` and `activation_checkpointing: true`"
        yield from here or _one(question, replace(recompute, shardings=(sharding,)), both)
    sharded = replace(recompute, shardings=("zero3",))
    yield from _offloaded(question, sharded)
    yield from _more_accelerators(question, replace(sharded, checkpointings=("none", "full")))
    yield from _shorter(question, sharded)
    yield from _adapters(question, recompute)
    if foreign := around.first(here=False):
        now = question.forecast(foreign.setup)
        yield _change(f"{now.strategy}, {checkpointing_words(now)} ({NOT_RUN})", now)


def _offloaded(question: Question, space: Space) -> Iterator[Change]:
    for offload in ("cpu", "nvme"):
        best = question.search(replace(space, offloads=(offload,))).best
        if best is None:
            continue
        now = question.forecast(best.setup)
        moved = (now.host_gib or now.nvme_gib) * min(question.machine.per_node, question.machine.accelerators)
        where = "memory" if offload == "cpu" else "disk"
        yield _change(f"`strategy: zero3` and `offload: {offload}` ({moved:,.0f} GiB of each node's {where})", now)
        return


def _more_accelerators(question: Question, space: Space) -> Iterator[Change]:
    """The least of the next doublings, then of the nodes between, that fits."""
    count = question.machine.accelerators
    while (count := count * 2) <= min(MOST_ACCELERATORS, question.recipe.global_batch):
        best = _on(question, count, space)
        if best is None:
            continue
        step = question.machine.per_node
        for fewer in range(count // 2 + step, count, step) if count <= 64 * step else ():
            if between := _on(question, fewer, space):
                count, best = fewer, between
                break
        now = forecast(best.setup, question.machine.resized(count), question.correction)
        yield _change(f"{count} accelerators with `strategy: zero3`, {checkpointing_words(now)}", now)
        return


def _on(question: Question, count: int, space: Space) -> Candidate | None:
    return question.search(space, machine=question.machine.resized(count)).best


def _shorter(question: Question, space: Space) -> Iterator[Change]:
    """Half the sequence, as often as it takes; the same tokens a step."""
    seq_len, batch = question.recipe.seq_len, question.recipe.global_batch
    while seq_len >= 512:
        seq_len, batch = seq_len // 2, batch * 2
        shorter = replace(question.recipe, seq_len=seq_len, global_batch=batch)
        found = list(
            _one(question, space, f"`seq_len: {seq_len}` with `activation_checkpointing: true`", recipe=shorter)
        )
        if found:
            yield found[0]
            return


def _adapters(question: Question, space: Space) -> Iterator[Change]:
    for bits, word in ((16, "LoRA"), (4, "QLoRA (4 bits)")):
        recipe = replace(question.recipe, lora=Lora(base_bits=bits))  # type: ignore[arg-type]
        found = list(_one(question, replace(space, offloads=("none",)), f"{word} adapters ({NOT_RUN})", recipe=recipe))
        if found:
            yield replace(found[0], runs_here=False)
            return


def checkpointing_words(found: Forecast) -> str:
    """For a person: whether activations are computed again."""
    return {"none": "nothing recomputed", "selective": "attention recomputed", "full": "activations recomputed"}[
        found.checkpointing
    ]


def _change(text: str, now: Forecast) -> Change:
    return Change(text=text, runs_here=now.runs_here, memory_gib=now.memory_gib, tokens_per_s=now.tokens_per_s)
