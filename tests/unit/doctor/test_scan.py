"""One pass in bounded memory finds what is there, wherever blocks are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from warpbeam.doctor.facts import KEPT, Source
from warpbeam.doctor.scan import LINE_BYTES, PER_SOURCE, Scanner, whole_lines
from warpbeam.doctor.signal import HINT, Signal, says, state, told

NEEDLE = says(r"needle (?P<number>\d+)\b")
LOG = b"hay\nneedle 1\nmore hay [rank3]: needle 2\n\xff\xfe broken bytes needle 3"


def scan(blocks: list[bytes], *signals: Signal) -> Scanner:
    scanner = Scanner(signals or (NEEDLE,))
    scanner.read(Source("log"), blocks)
    return scanner


@given(st.lists(st.integers(0, len(LOG)), max_size=6))
def test_the_facts_do_not_depend_on_where_blocks_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(LOG)]
    blocks = [LOG[start:end] for start, end in pairwise(edges)]
    found = scan(blocks).facts.of(NEEDLE)
    assert [fact.words["number"] for fact in found] == ["1", "2", "3"]
    assert [fact.rank for fact in found] == [None, 3, None]


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_whole_lines_lose_no_byte(blocks: list[bytes]) -> None:
    assert b"".join(whole_lines(blocks)) == b"".join(blocks)


def test_a_million_equal_lines_keep_a_few() -> None:
    scanner = scan([b"needle 7\n" * 100_000] * 3)
    assert len(scanner.facts.of(NEEDLE)) == KEPT == PER_SOURCE


def test_every_rank_is_known_though_few_lines_are_kept() -> None:
    scanner = Scanner([NEEDLE])
    for rank in range(1000):
        scanner.read(Source(f"rank-{rank}.log", rank=rank), [b"needle 7\n" * 10])
    assert scanner.facts.ranks_of(NEEDLE) == set(range(1000))
    assert len(scanner.facts.of(NEEDLE)) == KEPT


def test_the_earliest_line_is_kept_whatever_came_before() -> None:
    scanner = Scanner([NEEDLE])
    for number in range(KEPT):
        scanner.read(Source(f"{number}"), [b"2026-01-02 12:00:00 needle 1\n"])
    scanner.read(Source("last"), [b"2026-01-02 11:00:00 needle 2\n"])
    assert scanner.facts.of(NEEDLE)[-1].words == {"number": "2"}


def test_one_endless_line_is_cut() -> None:
    scanner = scan([b"x" * 3_000_000 + b" needle 4 " + b"y" * 3_000_000])
    (fact,) = scanner.facts.of(NEEDLE)
    assert len(fact.text) <= LINE_BYTES


def test_a_near_miss_leaves_room_for_what_is_meant() -> None:
    signal = says(r"needle", unless=r"blunt")
    scanner = scan([b"blunt needle\n" * 200, b"needle\n"], signal)
    assert [fact.text for fact in scanner.facts.of(signal)] == ["needle"]


def test_states_and_told_words_are_looked_for_only_where_they_mean_something() -> None:
    running, slow = state(r"\brunning\b", at=HINT), told(r"slower")
    facts = scan([b"running slower"], running, slow, NEEDLE).facts
    assert not facts.has(running, slow)


def test_the_last_line_of_a_log_is_known() -> None:
    assert scan([b"one\ntwo\n\n"]).facts.last_lines == {Source("log"): "two"}
