"""Each rule on evidence that shows its mechanism and on evidence that only looks like it."""

from __future__ import annotations

import re

import pytest

from tests.unit.doctor.examples import EXAMPLES, Evidence
from warpbeam.doctor import place
from warpbeam.doctor.diagnose import signals
from warpbeam.doctor.facts import Fact, Facts
from warpbeam.doctor.kinds import PAGES, Kind
from warpbeam.doctor.rules import RULES
from warpbeam.doctor.scan import Scanner, compiled, matches
from warpbeam.doctor.signal import Reading, Signal

BY_NAME = {rule.name: rule for rule in RULES}


def facts_of(evidence: Evidence) -> Facts:
    scanner = Scanner(signals())
    for where, text in evidence:
        scanner.read(place.source(where, told=True), [text.encode()])
    return scanner.facts


def test_every_rule_has_its_own_name_and_examples() -> None:
    assert len(BY_NAME) == len(RULES)
    assert set(EXAMPLES) == set(BY_NAME)


def test_every_kind_has_a_page_and_a_rule() -> None:
    assert set(PAGES) == set(Kind) == {rule.kind for rule in RULES}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_rule_finds_its_mechanism(name: str) -> None:
    finding = BY_NAME[name].find(facts_of(EXAMPLES[name].shows))
    assert finding is not None
    assert 0 < finding.confidence <= 1
    assert "?" not in finding.cause, "a word of the cause was not in the evidence"


@pytest.mark.parametrize("name", BY_NAME)
def test_a_rule_lets_a_near_miss_pass(name: str) -> None:
    assert BY_NAME[name].find(facts_of(EXAMPLES[name].near_miss)) is None


@pytest.mark.parametrize("name", BY_NAME)
def test_no_rule_finds_anything_in_nothing(name: str) -> None:
    assert BY_NAME[name].find(Facts()) is None


def test_a_pattern_uses_only_what_every_engine_knows() -> None:
    for signal in signals():
        re.compile(signal.pattern)
        assert not re.search(r"(?<!\\)\(\?(?!P<|:)|\\[1-9ZA]", signal.pattern), signal.pattern
        assert "\\s" not in signal.pattern, "white space would reach over line ends"


TEXTS = [text for example in EXAMPLES.values() for _, text in (*example.shows, *example.near_miss)]
LINES = sorted({line for text in TEXTS for line in text.split("\n")})


@pytest.mark.parametrize("reading", Reading)
def test_the_matcher_drops_no_line_that_a_rule_could_match(reading: Reading) -> None:
    """The native matcher and `re` agree on every signal and line: what the first drops, no rule would have seen."""
    database, known = compiled(signals(), reading, True)
    for line in LINES:
        native = {known[number] for number, _ in matches(database, line.encode())}
        assert {signal for signal in known if _matches(signal, line)} == native, line


def _matches(signal: Signal, line: str) -> bool:
    return re.search(signal.pattern, line, re.IGNORECASE) is not None


class Watched(Facts):
    """Notes which signals a rule asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[Signal] = set()

    def of(self, *signals: Signal) -> list[Fact]:
        self.asked |= set(signals)
        return super().of(*signals)

    def has(self, *signals: Signal) -> bool:
        self.asked |= set(signals)
        return super().has(*signals)

    def ranks_of(self, *signals: Signal) -> set[int]:
        self.asked |= set(signals)
        return super().ranks_of(*signals)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_rule_asks_only_for_signals_that_are_looked_for(name: str) -> None:
    facts = Watched()
    BY_NAME[name].find(facts)
    assert facts.asked <= set(BY_NAME[name].patterns)
