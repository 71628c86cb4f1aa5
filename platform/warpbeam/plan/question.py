"""The planner's question: a model, a recipe, machines, and what is fixed; and the search for its best setups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial

from warpbeam.plan.batch import enough_rows
from warpbeam.plan.correction import Correction
from warpbeam.plan.forecast import Forecast, forecast, quick_memory, quick_seconds, runs_on
from warpbeam.plan.layouts import CHOSEN_HERE, Space, families
from warpbeam.plan.machine import Machine
from warpbeam.plan.model_shape import ModelShape
from warpbeam.plan.search import LOOK_BACK, Choice, choose
from warpbeam.plan.setup import Recipe, Setup, Sharding


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        recipe: its micro-batch and checkpointing are the space's to choose.
        space: what may be chosen for the answer.
        here_only: advice is first about what this version runs.
        look_back: micro-batches from the largest that fits downwards that are tried; a job takes the largest.
        in_passing: asked with options, without a job file: advice is written as options.
    """

    shape: ModelShape
    recipe: Recipe
    machine: Machine
    space: Space
    correction: Correction | None = None
    in_passing: bool = False
    here_only: bool = True
    look_back: int = LOOK_BACK

    @property
    def only_here(self) -> bool:
        """`--engine here`: nothing else is asked about, so nothing else is advised. (A job's advice marks it.)"""
        return self.in_passing and self.here_only

    def best_setup(self) -> Setup | None:
        """The fastest whose promise holds; else the fastest that will likely run; else what needs least memory. None
        where no layout is legal."""
        return self.best_fitting() or self.best_fitting(promise=False) or self.search().nearest

    def best_fitting(self, *, promise: bool = True) -> Setup | None:
        """The fastest that fits (or will likely run). Where this version runs it, the one that a job would choose."""
        best = self.search(promise=promise).best
        if best is None or not self.runs(best.setup):
            return best.setup if best else None
        own = self.search_here(promise=promise).best
        return own.setup if own else best.setup

    def best_here(self) -> Setup | None:
        """The same choice among what this version runs; what is fixed stays where this version has it. None where
        nothing of it will likely run, or this version runs nothing of the kind."""
        for promise in (True, False):
            best = self.search_here(promise=promise).best
            if best is not None and self.runs(best.setup):
                return best.setup
        return None

    def search_here(self, shardings: tuple[Sharding, ...] | None = None, *, promise: bool = True) -> Choice:
        """The best setups among what this version runs, as plan/job_choice.py looks at them: the largest micro-batch
        that fits, up to what a rank gains by."""
        rows = enough_rows(self.recipe.seq_len, on_cpu=self.machine.is_cpu)
        asked = self._space_here()
        space = replace(
            asked,
            shardings=shardings or asked.shardings,
            most_tokens=min(asked.most_tokens, rows * self.recipe.seq_len),
        )
        return self.search(space, promise=promise, look_back=1)

    def runs(self, setup: Setup) -> bool:
        """Whether this version runs it on these machines."""
        return runs_on(setup, self.machine)

    def _space_here(self) -> Space:
        asked = self.space
        own = asked.shardings if asked.shardings == ("ddp",) else tuple(s for s in asked.shardings if s in CHOSEN_HERE)
        split = any(1 not in sizes for sizes in (asked.tps, asked.pps, asked.cps, asked.eps))
        recompute = tuple(c for c in asked.checkpointings if c != "selective")
        return Space(
            shardings=own or CHOSEN_HERE,
            checkpointings=recompute or ("none", "full"),
            micro_batches=asked.micro_batches,
            offloads=asked.offloads,
            most_tokens=asked.most_tokens,
            dp=None if split else asked.dp,
        )

    def search(self, space: Space | None = None, *, promise: bool = True, look_back: int | None = None) -> Choice:
        """The best setups of a space (default: the question's own)."""
        return _search(self, space or self.space, promise, look_back or self.look_back)

    def forecast(self, setup: Setup) -> Forecast:
        """Predict one setup on the question's machines."""
        return forecast(setup, self.machine, self.correction)


def forget() -> None:
    """Search anew from here on: for whoever measures how long that takes."""
    _search.cache_clear()


@lru_cache(maxsize=64)  # an answer asks some of its searches more than once, and one may take a second
def _search(question: Question, space: Space, promise: bool, look_back: int) -> Choice:
    there = question.machine
    return choose(
        families(question.shape, there.accelerators, there.per_node, there.link_domain, question.recipe, space),
        memory=partial(quick_memory, machine=there, correction=question.correction, promise=promise),
        seconds=partial(quick_seconds, machine=there, correction=question.correction),
        look_back=look_back,
    )
