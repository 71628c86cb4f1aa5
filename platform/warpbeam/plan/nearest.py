"""A question in passing, refused where it cannot be: with values that were tried and are accepted.

What is near is found by asking again with one thing changed, so nothing is offered that would be refused in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from warpbeam.errors import UserError
from warpbeam.plan.asked import STRATEGIES, Asked, laid_out
from warpbeam.plan.asked_checks import MOST_SEQUENCES, SIZES, check_values
from warpbeam.plan.batch import divisors, nearest_multiples
from warpbeam.plan.correction import Correction
from warpbeam.plan.layouts import ACROSS_NODES
from warpbeam.plan.machine import MOST_ACCELERATORS, Machine
from warpbeam.plan.model_shape import ModelShape
from warpbeam.plan.question import Question

TRIES: Final = 24  # of one kind of change, nearest first
OFFERS: Final = 2  # values of one kind that are named
KINDS: Final = 3
ABOUT_BATCH: Final = ("micro_batch", "dp", "global_batch_tokens")
OPEN: Final = dict.fromkeys((*SIZES, "strategy", "checkpointing", "offload"))

Offer = tuple[str, Asked, Machine]


def question(
    asked: Asked, shape: ModelShape, machine: Machine, correction: Correction | None = None, *, sized: bool = True
) -> Question:
    """What was asked, checked. Raises UserError with the nearest legal values.

    Args:
        sized: for this number of accelerators; False where other numbers will be tried (plan/scaling.py).
    """
    check_values(asked, shape, machine)
    try:
        return laid_out(asked, shape, machine, correction, sized=sized)
    except UserError as error:
        fix = _fix(asked, shape, machine, about_batch=error.reason == "batch_does_not_divide")
        raise UserError(error.what, why=error.why, fix=fix, reason=error.reason) from None


def offers(asked: Asked, shape: ModelShape, machine: Machine) -> dict[str, list[Offer]]:
    """Option -> what to write, for each single change after which the question is accepted; the nearest of each."""

    def accepted(offer: Offer) -> bool:
        return _is_accepted(offer[1], shape, offer[2])

    found = {name: _first(values, accepted) for name, values in _changes(asked, shape, machine)}
    return {name: values for name, values in found.items() if values}


def _is_accepted(asked: Asked, shape: ModelShape, machine: Machine) -> bool:
    try:
        check_values(asked, shape, machine)
        laid_out(asked, shape, machine)
    except UserError:
        return False
    return True


def _fix(asked: Asked, shape: ModelShape, machine: Machine, *, about_batch: bool) -> str:
    found = offers(asked, shape, machine)
    if about_batch:
        found = {name: found[name] for name in sorted(found, key=lambda name: name not in ABOUT_BATCH)}
    if found:
        return "write " + ", or ".join(_words(values) for values in list(found.values())[:KINDS])
    stated = [name for name in OPEN if getattr(asked, name) is not None]
    free = replace(asked, **OPEN)  # type: ignore[arg-type]
    ways = [(stated, free)] if stated else []
    if asked.engine == "here":
        ways.append(([*stated, "engine"], replace(free, engine="any")))
    for names, freed in ways:
        left_out = f"leave {', '.join('--' + name.replace('_', '-') for name in names)} out"
        if _is_accepted(freed, shape, machine):
            return left_out
        if found := offers(freed, shape, machine):
            others = ", or ".join(_words(values) for values in list(found.values())[:KINDS])
            return f"{left_out}, and write {others}"
    return "ask for another batch, sequence length or number of accelerators"


def _words(values: Sequence[Offer]) -> str:
    """`--tp 2 or 4`: the option once, then its values."""
    option, _, first = values[0][0].partition(" ")
    return " or ".join([f"`{option} {first}`", *(f"`{text.partition(' ')[2]}`" for text, _, _ in values[1:])])


def _first(values: Iterable[Offer], accepted: Callable[[Offer], bool]) -> list[Offer]:
    found: list[Offer] = []
    for tried, offer in enumerate(values):
        if tried == TRIES or len(found) == OFFERS:
            break
        if accepted(offer):
            found.append(offer)
    return found


def _changes(asked: Asked, shape: ModelShape, machine: Machine) -> Iterator[tuple[str, Iterator[Offer]]]:
    """Every single change that may mend a question: of what was stated, the accelerators, the batch."""
    candidates: dict[str, Sequence[int]] = {
        "tp": divisors(shape.heads),
        "pp": range(1, min(shape.layers, 128) + 1),
        "cp": divisors(asked.seq_len),
        "ep": divisors(shape.experts),
        "dp": divisors(machine.accelerators),
        "micro_batch": divisors(max(1, asked.global_batch_tokens // asked.seq_len)),
    }
    if asked.tp is not None and asked.tp > machine.link_domain and ACROSS_NODES not in asked.allow:
        offer = (f"--allow {ACROSS_NODES}", replace(asked, allow=(*asked.allow, ACROSS_NODES)), machine)
        yield "allow", iter((offer,))
    for name, values in candidates.items():
        if (stated := getattr(asked, name)) is not None:
            yield name, _replaced(asked, machine, name, _near(stated, values))
    for name, words in (
        ("strategy", STRATEGIES),
        ("checkpointing", ("none", "full")),
        ("offload", ("none",)),
    ):
        if getattr(asked, name) is not None:
            yield name, _replaced(asked, machine, name, words)
    if asked.engine == "here":
        yield "engine", _replaced(asked, machine, "engine", ("any",))
    yield "accelerators", _resized(asked, machine)
    tokens = [n * asked.seq_len for n in _sequences(asked, machine)]
    yield "global_batch_tokens", _replaced(asked, machine, "global_batch_tokens", tokens)


def _replaced(asked: Asked, machine: Machine, name: str, values: Iterable[int | str]) -> Iterator[Offer]:
    option = name.replace("_", "-")
    for value in values:
        if value != getattr(asked, name):
            yield f"--{option} {value}", replace(asked, **{name: value}), machine  # type: ignore[arg-type]


def _near(stated: int, values: Sequence[int]) -> list[int]:
    return sorted(values, key=lambda n: (abs(n - stated), n))


def _resized(asked: Asked, machine: Machine) -> Iterator[Offer]:
    """Other numbers of the same accelerators; of a pool's own, fewer only."""
    count = machine.accelerators
    model = (asked.tp or 1) * (asked.pp or 1) * (asked.cp or 1)
    near = {*nearest_multiples(count, model), *nearest_multiples(count, model * (asked.dp or 1))}
    near |= {1 << n for n in range(MOST_ACCELERATORS.bit_length())} | set(range(max(1, count - 4), count + 5))
    most = count if machine.pool else MOST_ACCELERATORS
    for n in _near(count, [n for n in near if n <= most and n != count]):
        kind = "" if machine.pool else f"x{machine.chip.name}"
        yield f"--accelerators {n}{kind}", asked, machine.resized(n)


def _sequences(asked: Asked, machine: Machine) -> list[int]:
    """Numbers of sequences that may be shared, the nearest first."""
    rows = max(1, asked.global_batch_tokens // asked.seq_len)
    unit = (asked.micro_batch or 1) * (asked.dp or 1)
    near = {*nearest_multiples(rows, unit), *nearest_multiples(rows, unit * machine.accelerators), rows, rows + 1}
    return _near(rows, [n for n in near if 1 <= n <= MOST_SEQUENCES])
