"""For every rule, evidence that shows its mechanism and a near miss: the rows of examples.jsonl."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

Evidence = list[tuple[str, str]]


@dataclass(frozen=True)
class Example:
    """(where, text) pairs on which a rule must speak, and others on which it must not."""

    shows: Evidence
    near_miss: Evidence


def load() -> dict[str, Example]:
    """By the rule's name."""
    lines = Path(__file__).with_suffix(".jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["rule"]: Example(_pairs(row["shows"]), _pairs(row["near_miss"])) for row in rows}


def _pairs(items: list[list[str]]) -> Evidence:
    return [(where, text) for where, text in items]


EXAMPLES = load()
