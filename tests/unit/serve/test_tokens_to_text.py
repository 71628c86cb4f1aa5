"""Text comes out whole characters at a time, and adds up to what the tokenizer itself decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.serve.tokenizers_for_tests import byte_fallback, byte_level
from warpbeam.serve.tokens_to_text import UNFINISHED, TextStream

BYTE_LEVEL = byte_level()
BYTE_FALLBACK = byte_fallback()


def decoder(tokenizer: object) -> Callable[[Sequence[int]], str]:
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def stream(tokenizer: object, ids: Sequence[int]) -> list[str]:
    text = TextStream(decoder(tokenizer))
    return [text.feed([token_id]) for token_id in ids]


@given(st.text(max_size=40).filter(lambda text: UNFINISHED not in text))
@settings(deadline=None)
def test_pieces_add_up_and_never_hold_half_a_character(text: str) -> None:
    pieces = stream(BYTE_LEVEL, BYTE_LEVEL(text).input_ids)
    assert "".join(pieces) == text
    assert all(UNFINISHED not in piece for piece in pieces)


def test_an_emoji_of_four_tokens_comes_with_its_last() -> None:
    ids = BYTE_LEVEL("a🌊b").input_ids
    assert len(ids) == 6
    assert stream(BYTE_LEVEL, ids) == ["a", "", "", "", "🌊", "b"]


def test_byte_tokens_after_a_whole_character_do_not_take_it_back() -> None:
    # This decoder turns a run of bytes with an unfinished end into replacement characters altogether.
    ids = [BYTE_FALLBACK.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "🌊🌊".encode()]
    assert stream(BYTE_FALLBACK, ids) == ["", "", "", "🌊", "", "", "", "🌊"]


def test_the_space_before_a_word_is_kept_where_the_decoder_strips_the_first() -> None:
    ids = [BYTE_FALLBACK.convert_tokens_to_ids(piece) for piece in ("▁north", "▁lakes", "▁", "end")]
    assert "".join(stream(BYTE_FALLBACK, ids)) == "north lakes end"


def test_special_tokens_are_not_shown() -> None:
    end = BYTE_LEVEL.eos_token_id
    assert "".join(stream(BYTE_LEVEL, [*BYTE_LEVEL("he").input_ids, end, *BYTE_LEVEL("y").input_ids])) == "hey"


def test_an_unfinished_character_at_the_very_end_is_dropped() -> None:
    assert "".join(stream(BYTE_LEVEL, BYTE_LEVEL("ab🌊").input_ids[:-1])) == "ab"


@pytest.mark.parametrize("count", [40])
def test_bytes_that_never_become_a_character_do_not_hold_the_stream_up(count: int) -> None:
    broken = BYTE_LEVEL("🌊").input_ids[1]  # a continuation byte
    pieces = stream(BYTE_LEVEL, [*[broken] * count, *BYTE_LEVEL("done").input_ids])
    assert "".join(pieces).endswith("done")
    assert any(pieces[:count])
