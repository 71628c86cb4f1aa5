from __future__ import annotations

from decimal import Decimal

import pytest

from warpbeam.kube.quantities import amount, in_words


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        (8, 8),
        ("500m", Decimal("0.5")),
        ("1.5", Decimal("1.5")),
        ("16Gi", 16 << 30),
        ("2k", 2000),
        ("1e3", 1000),
        ("3Ki", 3072),
        ("131072Mi", 128 << 30),
        ("100n", Decimal("1e-7")),
        ("1E", 10**18),
    ],
)
def test_amounts(text: str, value: Decimal) -> None:
    assert amount(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1gi", "eight", "1 Gi", "i", "3i"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        amount(text)


def test_words() -> None:
    assert in_words("nvidia.com/gpu", Decimal(3)) == "3 nvidia.com/gpu"
    assert in_words("memory", Decimal(12 << 30)) == "12 GiB of memory"
