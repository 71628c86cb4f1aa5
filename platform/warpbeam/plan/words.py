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
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            value = number / limit
            return f"{value:,.0f}{unit}" if value >= 999.5 else f"{value:.3g}{unit}"
    return str(number)


def plural(number: int, word: str) -> str:
    """`1 sequence`, `1,024 sequences`."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def rate(value: float) -> str:
    """`122,497`, `3.2`, `0.26`: never 0 for what is not nothing."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def share(value: float) -> str:
    """`37.0%`; a share too small for that keeps two digits."""
    return f"{value:.1%}" if value >= 0.001 or value == 0 else f"{100 * value:.1g}%"


def money(value: float) -> str:
    """`2,311.20`; less than a cent keeps two digits."""
    return f"{value:,.2f}" if value >= 0.01 or value == 0 else f"{value:.2g}"
