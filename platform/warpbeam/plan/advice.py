"""Advice: the one change that would help most; where nothing fits, the smallest changes that would.

Each piece is tried as a person would try it: the question is asked again with the change made and all else as it was
fixed, and what is stated is the answer to that. Nothing is changed that is not named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any, Final

from warpbeam.plan.batch import divisors
from warpbeam.plan.change_words import FIELDS, Changes, change_words, changed
from warpbeam.plan.forecast import Forecast
from warpbeam.plan.layouts import CHOSEN_HERE, RUNS_HERE, Space, any_engine
from warpbeam.plan.machine import MOST_ACCELERATORS
from warpbeam.plan.question import Question
from warpbeam.plan.search import Choice
from warpbeam.plan.setup import Setup

WORTH_SAYING: Final = 0.03  # a smaller gain is within what the prediction knows
NOT_RUN: Final = "not run by this version"
ANOTHER_BATCH: Final = "another experiment: the learning rate must follow"
MOST_PP: Final = 128
SHORTEST: Final = 128  # tokens of a sequence that anybody would still train on
ADAPTER_RANK: Final = 16
STATE_BYTES: Final = {"full": 12.0, "adapters": 0.5}  # of a parameter, at least: what no sharding makes go away
MOST_HOST_GIB: Final = 4096.0  # of a node, where nobody says how much it has
BETWEEN: Final = 64  # nodes up to which the numbers between two doublings are tried


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change and what it would bring.

    Attributes:
        text: what to write or to do.
        gain: tokens/s more, as a fraction; None where it is about fitting.
        runs_here: this version could do it.
        changes: name -> value of all that it changes; empty where it is another engine altogether.
    """

    text: str
    runs_here: bool
    memory_gib: float
    tokens_per_s: float
    gain: float | None = None
    changes: Changes = field(default_factory=dict)


def everything(question: Question) -> Space:
    """All that engines do on these machines; this version alone where nothing else was asked about."""
    own = question.machine.is_cpu or question.only_here
    wide = Space(shardings=CHOSEN_HERE) if own else any_engine(min(question.shape.layers, MOST_PP))
    return replace(wide, most_tokens=question.space.most_tokens)


def help_most(question: Question, now: Forecast, around: Choice) -> Change | None:
    """The single change with the largest gain in tokens/s on the same accelerators; a larger batch where none gains."""
    single = [*_freed(question), *_half_precision(question), *_foreign(question, around)]
    own = [change for change in single if change.runs_here]
    larger = _tried(question, {"global_batch": 2 * question.recipe.global_batch}, f" ({ANOTHER_BATCH})")
    for options in (own if question.here_only else single, single, larger):  # the last one is a search of its own
        best = max(options, key=lambda change: change.tokens_per_s, default=None)
        gain = best.tokens_per_s / now.tokens_per_s - 1 if best is not None else 0.0
        if best is not None and gain >= WORTH_SAYING:
            text = best.text if now.runs_here else best.text.replace(f" ({NOT_RUN})", "")  # as what it is compared with
            return replace(best, gain=gain, text=text)
    return None


def would_fit(question: Question, around: Choice) -> Iterator[Change]:
    """Changes after which it fits, from the smallest to the largest; none that another one of them is a part of."""
    found: list[Change] = []
    for change in _fitting(question, around):
        if not any(before.changes and before.changes.items() <= change.changes.items() for before in found):
            found.append(change)
            yield change


def _freed(question: Question) -> Iterator[Change]:
    """Each fixed thing set to what would be best in its place."""
    wide = Space(shardings=CHOSEN_HERE) if question.here_only else everything(question)
    for name, attribute in FIELDS.items():
        fixed, options = getattr(question.space, attribute), getattr(wide, attribute)
        if fixed is None or len(fixed) > 1 or fixed == options:
            continue
        best = changed(question, {name: None}, wide).best_fitting()
        if best is not None and (value := _value_of(best, name)) != fixed[0]:
            yield from _tried(question, {name: value})


def _half_precision(question: Question) -> Iterator[Change]:
    """fp16, where bf16 would be computed in fp32. A job has no such word."""
    machine = question.machine
    emulated = question.recipe.precision == "bf16" and not machine.chip.peak_bf16 and not machine.is_cpu
    if emulated and question.in_passing and not question.only_here:
        yield from _tried(question, {"precision": "fp16"})


def _value_of(setup: Setup, name: str) -> Any:
    if name == "strategy":
        return setup.layout.sharding
    return getattr(setup.recipe if name in ("checkpointing", "micro_batch") else setup.layout, name)


def _tried(question: Question, changes: Changes, note: str = "") -> Iterator[Change]:
    """The question asked again with the changes: nothing where there are none, or where that does not fit."""
    if not changes:
        return
    again = changed(question, changes)
    best = again.best_fitting()
    if best is None:
        return
    now = again.forecast(best)
    if changes.get("offload") in ("cpu", "nvme"):
        moved = (now.host_gib or now.nvme_gib) * min(again.machine.per_node, again.machine.accelerators)
        if changes["offload"] == "cpu" and moved > (again.machine.host_gib or MOST_HOST_GIB):
            return
        where = "memory" if changes["offload"] == "cpu" else "disk"
        note += f" ({moved:,.0f} GiB of each node's {where})"
    note += "" if now.runs_here else f" ({NOT_RUN})"
    yield Change(
        text=change_words(question, changes) + note,
        runs_here=now.runs_here,
        memory_gib=now.memory_gib,
        tokens_per_s=now.tokens_per_s,
        changes=dict(changes),
    )


def _foreign(question: Question, around: Choice) -> Iterator[Change]:
    """The best that this version does not run, named in full."""
    for candidate in around.ranked:
        if not question.runs(candidate.setup):
            now = question.forecast(candidate.setup)
            words = f"{now.strategy}, micro-batch {now.micro_batch}, {checkpointing_words(now)} ({NOT_RUN})"
            yield Change(text=words, runs_here=False, memory_gib=now.memory_gib, tokens_per_s=now.tokens_per_s)
            return


def _fitting(question: Question, around: Choice) -> Iterator[Change]:
    ladder: list[Changes] = []  # what does not do alone, and so may need something beside it
    enough: list[Changes] = []
    for rung in _ladder(question):
        found = [] if any(less.items() <= rung.items() for less in enough) else list(_tried(question, rung))
        enough += [rung] if found else []
        yield from found
        if not any(less.items() <= rung.items() for less in enough):
            ladder.append(rung)
    offloaded = list(_offloaded(question, ladder))
    yield from offloaded
    more = _other_ranks if question.machine.shared is not None else _more_accelerators
    yield from more(question, ladder)
    yield from _shorter(question, ladder, may_offload=not offloaded)
    yield from _adapters(question, ladder)
    yield from _foreign(question, around)


def _ladder(question: Question) -> Iterator[Changes]:
    """What was fixed, made to need less memory: nothing of it, one thing, two things, ..."""
    space = question.space
    less: list[Changes] = []
    if space.micro_batches is not None and space.micro_batches != (1,):
        less.append({"micro_batch": 1})
    if space.checkpointings in (("none",), ("selective",)):
        less.append({"checkpointing": "full"})
    own = [s for s in RUNS_HERE if space.shardings == (s,)]
    later = RUNS_HERE[RUNS_HERE.index(own[0]) + 1 :] if own else ()
    for count in range(len(less) + 1):
        for chosen in combinations(less, count):
            together = {name: value for part in chosen for name, value in part.items()}
            yield together
            yield from ({"strategy": sharding} | together for sharding in later)


def _offloaded(question: Question, ladder: Sequence[Changes]) -> Iterator[Change]:
    kinds = ("nvme",) if question.machine.is_cpu else ("cpu", "nvme")  # a CPU's memory is the host's
    for offload in kinds:
        for rung in ladder:
            if found := list(_tried(question, {"offload": offload, **rung})):
                yield found[0]
                return


def _more_accelerators(question: Question, ladder: Sequence[Changes]) -> Iterator[Change]:
    """The least of the next doublings, then of the nodes between, that fits; with a batch that they can share."""
    count, step = question.machine.accelerators, question.machine.node_size or question.machine.per_node
    states = STATE_BYTES["full" if question.recipe.lora is None else "adapters"] * question.shape.parameters
    while (count := count * 2) <= MOST_ACCELERATORS:
        if states / count > question.machine.memory_gib * (1 << 30):
            continue
        for rung, larger_batch in product(ladder, (False, True)):
            if not (found := list(_tried(question, _on(question, count, rung, larger_batch)))):
                continue
            for fewer in range(count // 2 + step, count, step) if count <= BETWEEN * step else ():
                if between := list(_tried(question, _on(question, fewer, rung, larger_batch))):
                    found = between
                    break
            yield found[0]
            return
        if count >= 64 * question.machine.accelerators and states / count < question.machine.memory_gib * (1 << 26):
            return  # the states are nothing any more: it is something else that does not fit


def _other_ranks(question: Question, ladder: Sequence[Changes]) -> Iterator[Change]:
    """Of a CPU pool, whose ranks share its memory: fewer have more of it each; more only where nodes stand idle."""
    now, most = question.machine.accelerators, question.machine.most or 0
    sizes = [n for n in divisors(question.recipe.global_batch) if n <= most and n != now]
    for count, rung in product(sorted(sizes, key=lambda n: (n > now, abs(n - now))), ladder):
        if found := list(_tried(question, {"accelerators": count, **rung})):
            yield found[0]
            return


def _on(question: Question, count: int, rung: Changes, larger_batch: bool) -> Changes:
    batch = question.recipe.global_batch
    shared = {"global_batch": -(-batch // count) * count} if larger_batch else {}
    return {"accelerators": count, **shared, **rung}


def _shorter(question: Question, ladder: Sequence[Changes], *, may_offload: bool) -> Iterator[Change]:
    """Half the sequence, as often as it takes; the same tokens a step. With offload where neither does alone."""
    asked = question.recipe
    beside: list[Changes] = [{}, {"offload": "cpu"}] if may_offload and not question.machine.is_cpu else [{}]
    for more in beside:
        seq_len, batch = asked.seq_len, asked.global_batch
        while seq_len % 2 == 0 and seq_len >= 2 * SHORTEST:
            seq_len, batch = seq_len // 2, batch * 2
            for rung in ladder:
                if found := list(_tried(question, {"seq_len": seq_len, "global_batch": batch, **more, **rung})):
                    yield found[0]
                    return


def _adapters(question: Question, ladder: Sequence[Changes]) -> Iterator[Change]:
    if question.only_here:
        return  # this version has none
    for bits in (16, 4):
        for rung in ladder:
            adapters = {"lora": ADAPTER_RANK, "base_bits": bits}
            if found := list(_tried(question, {**adapters, **rung})):
                yield found[0]
                return


def checkpointing_words(found: Forecast) -> str:
    """For a person: whether activations are computed again."""
    return {"none": "nothing recomputed", "selective": "attention recomputed", "full": "activations recomputed"}[
        found.checkpointing
    ]
