"""Kubernetes' amounts as numbers: `500m`, `16Gi`, `8`, `1.5`, `1e3`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

_FACTORS: Final[Mapping[str, Decimal]] = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}
_SHAPE: Final = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]?i?|Ki)")


def amount(text: str | float) -> Decimal:
    """The number that a quantity means; bytes for memory, cores for cpu.

    Raises:
        ValueError: it is none.
    """
    match = _SHAPE.fullmatch(str(text))
    if match is None or match[2] not in _FACTORS:
        raise ValueError(f"{text!r} is no quantity")
    return Decimal(match[1]) * _FACTORS[match[2]]


def in_words(name: str, value: Decimal) -> str:
    """`3 nvidia.com/gpu`, `1.5 cpu`, `12 GiB of memory`."""
    if name in ("memory", "ephemeral-storage"):
        return f"{float(value) / (1 << 30):.3g} GiB of {name}"
    return f"{float(value):g} {name}"
