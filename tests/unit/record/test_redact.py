from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from warpbeam.record.redact import Redactor

SECRET = "hf_canary-0123456789"


def test_a_secret_never_comes_out() -> None:
    assert Redactor([SECRET]).text(f"token={SECRET}!") == "token=[secret]!"


def test_short_and_empty_values_leave_text_alone() -> None:
    assert Redactor(["", "1", "true"]).text("true: 1") == "true: 1"


@given(st.binary(max_size=40), st.binary(max_size=40), st.lists(st.integers(0, 100), max_size=8))
def test_however_the_text_is_cut(before: bytes, after: bytes, cuts: list[int]) -> None:
    whole = before + SECRET.encode() + after + SECRET.encode()[:7]
    redactor = Redactor([SECRET])
    places = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    out = b"".join(redactor.feed(piece) for piece in pieces) + redactor.feed(b"", final=True)
    assert out == whole.replace(SECRET.encode(), b"[secret]")


def test_a_secret_with_quotes_is_found_inside_json() -> None:
    import json

    odd = 'quo"te-and-\\slash'
    assert odd not in json.loads(Redactor([odd]).text(json.dumps({"x": odd})))["x"]
