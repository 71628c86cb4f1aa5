"""Nothing of a match is sent, everything else is, however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.serve.stops import StopMatcher

SENTENCE = "north 7 rivers, south 9 lakes 🌊 end"


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    sent = ""
    for piece in pieces:
        sent += matcher.feed(piece)
        if matcher.stopped:
            return sent, True
    return sent + matcher.finish(), False


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (["rivers, south"], "north 7 "),
        (["s 9 l"], None),
        (["th 9 l"], "north 7 rivers, sou"),
        (["zzz", "lak"], "north 7 rivers, south 9 "),
        (["🌊"], "north 7 rivers, south 9 lakes "),
        (["kes 🌊 e"], "north 7 rivers, south 9 la"),
        (["rivers, sooth"], None),
        (["end."], None),
        (["d"], "north 7 rivers, south 9 lakes 🌊 en"),
        (["north"], ""),
        ([], None),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_text_ends_exactly_before_the_match(stops: list[str], expected: str | None, size: int) -> None:
    pieces = [SENTENCE[start : start + size] for start in range(0, len(SENTENCE), size)]
    assert run(pieces, stops) == ((SENTENCE, False) if expected is None else (expected, True))


def test_nothing_of_a_coming_match_is_sent_early() -> None:
    matcher = StopMatcher(["rivers, south"])
    assert matcher.feed("north 7 ri") == "north 7 "
    assert matcher.feed("vers, ") == ""
    assert matcher.feed("south 9") == ""
    assert matcher.stopped
    assert matcher.feed("more") == ""


def test_a_near_miss_is_sent_as_soon_as_it_is_one() -> None:
    matcher = StopMatcher(["rivers, sooth"])
    assert matcher.feed("rivers, so") == ""
    assert matcher.feed("uth") == "rivers, south"


def test_the_stop_that_ends_first_wins_and_the_longest_of_those() -> None:
    assert run(["abcd"], ["abcd", "bc"]) == ("a", True)
    assert run(["xabc"], ["c", "abc"]) == ("x", True)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


@given(
    text=st.text(alphabet="ab🌊", max_size=30),
    stops=st.lists(st.text(alphabet="ab🌊", min_size=1, max_size=4), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_the_result_is_that_of_the_whole_text(text: str, stops: list[str], cuts: list[int]) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    ends = {
        (end, end - len(stop))
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if text[end - len(stop) : end] == stop
    }
    assert run(pieces, stops) == ((text[: min(ends)[1]], True) if ends else (text, False))
