"""The whole answer to a planner's question: what was chosen and why, what else would do, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from warpbeam.plan.advice import Change, everything, help_most, would_fit
from warpbeam.plan.forecast import Forecast
from warpbeam.plan.layouts import RUNS_HERE
from warpbeam.plan.question import Question
from warpbeam.plan.search import Choice
from warpbeam.plan.setup import Layout, Setup

__all__ = ["Answer", "Change", "Question", "answer", "smallest"]

ALTERNATIVES: Final = 3
WAYS_TO_FIT: Final = 6


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
    around = question.search(everything(question))
    ours = None if predicted.runs_here else question.best_here()
    return Answer(
        chosen=predicted,
        stages=() if question.machine.chip.form == "tpu" else tuple(_stages(question)),
        alternatives=tuple(_alternatives(question, chosen, around)),
        help_most=help_most(question, predicted, around) if predicted.fits else None,
        would_fit=() if predicted.fits else tuple(would_fit(question, around))[:WAYS_TO_FIT],
        considered=found.considered + around.considered,
        ours=None if ours is None else question.forecast(ours),
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
    plain = replace(question, space=replace(question.space, offloads=("none",)))
    for sharding in RUNS_HERE:
        found = plain.search_here((sharding,))
        if found.best is None:
            found = plain.search_here((sharding,), promise=False)
        setup = found.best.setup if found.best else found.nearest
        if setup is not None:
            yield question.forecast(setup)


def _alternatives(question: Question, chosen: Setup, around: Choice) -> Iterator[Forecast]:
    """The three fastest others; of a job, two that this version runs and one that it does not, if there are such."""
    seen, others = {_key(chosen)}, []
    own = replace(question, space=everything(question)).search_here()
    foreign_ones = [candidate for candidate in around.ranked if not question.runs(candidate.setup)]
    for candidate in (*own.ranked, *foreign_ones):
        key = _key(candidate.setup)
        if key not in seen:
            seen.add(key)
            others.append(candidate)
    others.sort(key=lambda candidate: candidate.step_s)
    if not question.in_passing:
        here = [c for c in others if question.runs(c.setup)][:ALTERNATIVES]
        elsewhere = [c for c in others if not question.runs(c.setup)]
        foreign = elsewhere[: max(1, ALTERNATIVES - len(here))]
        others = sorted([*here[: ALTERNATIVES - len(foreign)], *foreign], key=lambda candidate: candidate.step_s)
    for candidate in others[:ALTERNATIVES]:
        yield question.forecast(candidate.setup)


def _key(setup: Setup) -> tuple[object, ...]:
    """What makes two setups different enough to be told apart in a list of three."""
    layout = setup.layout
    return layout.sharding, layout.tp, layout.pp, layout.ep, layout.offload
