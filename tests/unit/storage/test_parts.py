from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.storage.parts import MAX_PARTS, MIN_PART_BYTES, PART_BYTES, Part, cut

TIB = 2**40


@given(st.integers(0, 5 * TIB), st.integers(MIN_PART_BYTES, 64 << 20))
def test_parts_cover_the_object_once_within_what_s3_takes(size: int, part_bytes: int) -> None:
    parts = cut(size, part_bytes)
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert len(parts) <= MAX_PARTS
    end = 0
    for part in parts:
        assert part.start == end
        assert part.size > 0
        end += part.size
    assert end == size
    equal = {part.size for part in parts[:-1]}
    assert len(equal) <= 1
    assert all(each >= max(part_bytes, parts[-1].size) for each in equal)
    assert max([part.size for part in parts], default=0) < 5 * 2**30, "S3's largest part"


def test_an_ordinary_object_has_parts_of_the_usual_size() -> None:
    assert cut(0) == []
    assert cut(PART_BYTES) == [Part(1, 0, PART_BYTES)]
    assert cut(2 * PART_BYTES + 7)[1:] == [Part(2, PART_BYTES, PART_BYTES), Part(3, 2 * PART_BYTES, 7)]


@pytest.mark.parametrize(("size", "part_bytes"), [(-1, PART_BYTES), (1, MIN_PART_BYTES - 1)])
def test_what_s3_would_refuse_is_refused(size: int, part_bytes: int) -> None:
    with pytest.raises(ValueError, match="cannot cut"):
        cut(size, part_bytes)
