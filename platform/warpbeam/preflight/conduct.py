"""One preflight from the first rank to the last answer: who is asked what, in which order, and until when.

The order matters. Links come before collectives, because one dead link stops all of those; and each question has a
deadline, after which the silent rank is the finding. A rank that is gone ends the measuring: what its peers say then is
the consequence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from warpbeam.preflight.ask import Ask
from warpbeam.preflight.crew import Answered, Crew, Died, Failed, Joined
from warpbeam.preflight.measured import Clock, How, Lost, Measured, Skipped
from warpbeam.preflight.phases import burn, collective, links

CLOCK_ASKED = 3
STORAGE_S = 120.0
GRACE_S = 5.0
"""A rank whose partner is silent answers by its own deadline; whoever is silent after that hangs."""
MOST_WAIT_S = 1.0


class Progress(Protocol):
    """Whoever shows how far it is."""

    def __call__(self, phase: str, done: int, of: int) -> None:
        """`done` of `of` parts of a phase are there."""
        ...


class CutShort(Exception):
    """Ranks are gone: nothing further can be measured."""


class Conductor:
    """Conducts one crew. `measured` grows; `run` returns it.

    Args:
        now: monotonic seconds.
    """

    def __init__(
        self,
        crew: Crew,
        ask: Ask,
        progress: Progress = lambda phase, done, of: None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.crew, self.ask, self.progress = crew, ask, progress
        self.now, self._wall = now, wall
        self.measured = Measured(wanted=crew.size)
        self.ports: dict[int, int] = {}
        self._ends_at = now() + ask.budget_s
        self._order = 0
        self._tag = 0

    @property
    def left_s(self) -> float:
        """Of the whole budget."""
        return self._ends_at - self.now()

    def next_tag(self) -> int:
        """A name that no group has had."""
        self._tag += 1
        return self._tag

    def run(self) -> Measured:
        """Everything, or as much as could be. Ends what the crew has started."""
        try:
            self.crew.start()
            for name, phase in (
                ("start", self._join),
                ("machines", self._machines),
                ("clocks", self._clocks),
                ("devices", lambda: burn.run(self)),
                ("rendezvous", self._rendezvous),
                ("links", lambda: links.run(self)),
                ("collectives", lambda: collective.run(self)),
            ):
                began = self.now()
                try:
                    phase()
                finally:
                    self.measured.seconds[name] = round(self.now() - began, 3)
        except CutShort:
            self.measured.skipped.append(Skipped("what was to follow", "not all ranks are there"))
        finally:
            self.crew.close()
        return self.measured

    def tell(
        self,
        phase: str,
        orders: Mapping[int, dict[str, Any]],
        within_s: float,
        *,
        together: bool = False,
        seen: Callable[[int], None] = lambda rank: None,
    ) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
        """Send each rank its order; returns (answers, errors) by rank once all of them have spoken.

        Args:
            together: all of them work on one thing: when it has failed for one, the others are to say so soon.

        Raises:
            CutShort: a rank died, or was silent until `within_s` and a grace had passed; where several were, once
                more as long, so that those that only wait for one can say so.
        """
        self._order += 1
        for rank, order in orders.items():
            self.crew.send(rank, order | {"id": self._order})
        answers: dict[int, dict[str, Any]] = {}
        errors: dict[int, str] = {}
        began = self.now()
        until, patience_s = began + within_s + GRACE_S, within_s
        while waiting := orders.keys() - answers.keys() - errors.keys() - self._gone():
            if (left := until - self.now()) <= 0:
                if len(waiting) > 1 and patience_s and not self._gone():  # one of them may only wait for another
                    until, patience_s = self.now() + patience_s, 0.0
                    continue
                if not self._gone():  # else they wait for the one that is gone
                    self._silent(phase, waiting, self.now() - began, How.HANGS)
                break
            match self.crew.next(min(left, MOST_WAIT_S)):
                case Answered(rank, number, value) if number == self._order:
                    answers[rank] = value
                    seen(rank)
                case Failed(rank, number, what) if number == self._order:
                    errors[rank] = what
                    seen(rank)
                    until = min(until, self.now() + GRACE_S) if together else until
                case Died(rank, what):
                    self._died(phase, rank, what, self.now() - began)
                    until = min(until, self.now() + GRACE_S)
        if self._gone():
            self.note_errors(phase, errors)
            raise CutShort
        return answers, errors

    def tell_all(self, phase: str, order: dict[str, Any], within_s: float) -> dict[int, dict[str, Any]]:
        """The same for every rank, one bar of progress; an error in a rank is written down."""
        everyone = [rank.rank for rank in self.measured.ranks]
        heard: list[int] = []

        def seen(rank: int) -> None:
            heard.append(rank)
            self.progress(phase, len(heard), len(everyone))

        answers, errors = self.tell(phase, dict.fromkeys(everyone, order), within_s, seen=seen)
        self.note_errors(phase, errors)
        return answers

    def note_errors(self, phase: str, errors: Mapping[int, str]) -> None:
        """Write down what failed in ranks that go on."""
        self.measured.errors += [(phase, rank, what) for rank, what in sorted(errors.items())]

    def _join(self) -> None:
        """All ranks, or the names of those that do not come."""
        began = self.now()
        missing = set(range(self.crew.size))
        while missing:
            left = began + self.ask.join_s - self.now()
            if left <= 0:
                self._silent("start", missing, self.now() - began, How.NEVER_JOINED)
                break
            match self.crew.next(min(left, MOST_WAIT_S)):
                case Joined(who):
                    self.measured.ranks.append(who)
                    missing.discard(who.rank)
                case Died(rank, what):
                    self._died("start", rank, what, self.now() - began)
                    break
            self.progress("start", self.crew.size - len(missing), self.crew.size)
        self.measured.ranks.sort(key=lambda who: who.rank)
        self._ends_at = max(self._ends_at, self.now() + self.ask.budget_s / 2)  # who waited long is measured as well
        if self._gone():
            raise CutShort

    def _machines(self) -> None:
        """What each rank finds; and disk and store, once a machine."""
        self.measured.machine = self.tell_all(
            "machines", {"probe": "facts", "names": list(self.ask.names)}, self.ask.answer_s
        )
        if self.ask.disk is None and self.ask.store is None:
            self.measured.skipped.append(Skipped("disk and store", "not asked for"))
            return
        first = {rank.machine: rank.rank for rank in reversed(self.measured.ranks)}
        order = {"probe": "storage", "folder": self.ask.disk, "store": self.ask.store, "pool": self.ask.pool}
        self.progress("disk and store", 0, len(first))
        answers, errors = self.tell("disk and store", dict.fromkeys(sorted(first.values()), order), STORAGE_S)
        self.measured.storage = answers
        self.note_errors("disk and store", errors)

    def _clocks(self) -> None:
        """The best of a few messages there and back, one rank after another so that nobody waits for a neighbour."""
        for rank in [one.rank for one in self.measured.ranks]:
            for _ in range(CLOCK_ASKED):
                sent = self._wall()
                answers, _ = self.tell("clocks", {rank: {"probe": "clock"}}, self.ask.answer_s)
                back = self._wall()
                if rank in answers:
                    found = Clock(answers[rank]["at"] - (sent + back) / 2, (back - sent) / 2)
                    known = self.measured.clocks.get(rank)
                    if known is None or found.error_s < known.error_s:
                        self.measured.clocks[rank] = found

    def _rendezvous(self) -> None:
        """Every rank opens its own store, then reaches rank 0's, as the job's ranks must."""
        answers = self.tell_all("rendezvous", {"probe": "open"}, self.ask.answer_s)
        self.ports = {rank: int(value["port"]) for rank, value in answers.items()}
        if len(self.ports) < len(self.measured.ranks):
            raise CutShort
        first = self.measured.ranks[0]
        order = {"probe": "reach", "host": first.address, "port": self.ports[0]}
        reached, errors = self.tell(
            "rendezvous", dict.fromkeys([one.rank for one in self.measured.ranks], order), self.ask.link_s
        )
        self.measured.rendezvous = {**dict.fromkeys(reached, ""), **errors}

    def _gone(self) -> set[int]:
        return {one.rank for one in self.measured.lost}

    def _died(self, phase: str, rank: int, what: str, after_s: float) -> None:
        if rank not in self._gone():
            self._lose(rank, How.DIED, phase, after_s, what)

    def _silent(self, phase: str, ranks: Collection[int], after_s: float, how: How) -> None:
        for rank in sorted(ranks):
            self._lose(rank, how, phase, after_s, self.crew.state_of(rank))

    def _lose(self, rank: int, how: How, phase: str, after_s: float, what: str) -> None:
        node = next((one.node for one in self.measured.ranks if one.rank == rank), "")
        self.measured.lost.append(Lost(rank, how, phase, round(after_s, 1), what, node))
