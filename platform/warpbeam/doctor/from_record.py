"""A run's record as evidence: logs, events and heartbeats of its newest attempts, and how it says that it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from warpbeam.doctor.collect import Collected, Item, collect
from warpbeam.doctor.diagnose import Answer, diagnose
from warpbeam.record import keys
from warpbeam.record.view import RunView

ATTEMPTS = 3
"""The newest ones."""


def examine(view: RunView) -> tuple[Collected, Answer]:
    """What was read, and the cause in the newest attempt that names one: whatever an older one died of was got over.
    Where none does, all are looked at together.
    """
    attempts = view.attempts()[-ATTEMPTS:]
    for attempt in reversed(attempts):
        read = collect(_items(view, attempt))
        answer = diagnose(read.facts)
        if answer.first is not None:
            return read, answer
    read = collect(item for attempt in attempts for item in _items(view, attempt))
    return read, diagnose(read.facts)


def _items(view: RunView, attempt: str) -> Iterator[Item]:
    """What the record holds of an attempt; objects are fetched one by one."""
    yield from _logs(view, attempt)
    yield f"{attempt}/events", [_lines(view.events(attempt))]
    beats = {who: beat for who, (beat, _) in view.heartbeats(attempt).items() if who.startswith("rank-")}
    yield f"{attempt}/heartbeats", ["\n".join(lagging(beats)).encode()]


def lagging(beats: dict[str, dict[str, Any]]) -> list[str]:
    """A line for the one rank whose last step is behind all others'; none where they are level or many lag."""
    steps = {who: int(beat["step"]) for who, beat in beats.items()}
    newest = max(steps.values(), default=0)
    behind = [who for who, step in steps.items() if step < newest]
    if len(behind) != 1 or len(steps) < 3:
        return []
    (who,) = behind
    rank = who.removeprefix("rank-")
    return [f"heartbeats: rank {rank} stood at step {steps[who]}, in phase {beats[who]['phase']}; others at {newest}"]


def _logs(view: RunView, attempt: str) -> Iterator[Item]:
    prefix = keys.streams(view.team, view.run, attempt, "logs")
    objects = (info.key for info in view.store.list(f"{prefix}/"))
    for who, chunks in groupby(objects, key=lambda key: key.removeprefix(f"{prefix}/").rpartition("/")[0]):
        yield f"{attempt}/{who}.log", (view.store.get(key) for key in chunks)


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
