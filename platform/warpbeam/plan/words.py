"""Numbers as people read them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """`0.42 s`, `6.5 s`, `156 s`."""
    if value < 0.1:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def span(value: float) -> str:
    """A longer time for people."""
    if value < 120:
        return seconds(value)
    if value < 7200:
        return f"{value / 60:.0f} min"
    hours = value / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:,.0f} days"


def count_words(number: int) -> str:
    """`494M`, `8.03B`."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return str(number)
