"""A run's record as evidence: logs, events and heartbeats of its newest attempts, and how it says that it ended."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from time import gmtime, strftime
from typing import Any

from warpbeam.doctor.bundle import Limits, bundle_items
from warpbeam.doctor.collect import Collected, Item, collect
from warpbeam.doctor.diagnose import Answer, diagnose
from warpbeam.record import keys
from warpbeam.record.view import RunView

WATCHED = ("monitor", "launch_late")
"""Kinds of events in which the driver tells what it has seen of its ranks."""
NEAR_END_S = 600.0
ATTEMPTS = 3
"""The newest ones."""
_THREAD = re.compile(rb"^(?=Thread 0x|Current thread 0x|Fatal Python error|---)", re.MULTILINE)
_LOOP = (b" in run_rank", b" in _setup_torch_process_group")
BOX_BYTES = 64 << 20
"""A black box of one machine is smaller; whatever is larger was not packed by us."""


def examine(view: RunView) -> tuple[Collected, Answer]:
    """What was read, and the cause in the newest attempt that names one: whatever an older one died of was got over.
    Where none does, all are looked at together.
    """
    attempts = view.attempts()[-ATTEMPTS:]
    for attempt in reversed(attempts):
        left_out: list[str] = []
        read = collect(_items(view, attempt, left_out), left_out)
        answer = diagnose(read.facts)
        if answer.first is not None:
            return read, answer
    left_out = []
    read = collect((item for attempt in attempts for item in _items(view, attempt, left_out)), left_out)
    return read, diagnose(read.facts)


def look_at_running(view: RunView) -> Answer:
    """Of a run that trains only what its monitor sees counts: lines that look odd have not kept it from training."""
    said = watched(view.events(view.attempts()[-1]))
    return diagnose(collect([("heartbeats", ["\n".join(said).encode()])]).facts)


def _items(view: RunView, attempt: str, left_out: list[str]) -> Iterator[Item]:
    """What the record holds of an attempt; objects are fetched one by one."""
    logs = set()
    for name, blocks in _logs(view, attempt):
        logs.add(name)
        yield name, blocks
    events = view.events(attempt)
    yield f"{attempt}/events", [_lines([event for event in events if event["kind"] not in WATCHED])]
    beats = {who: beat for who, (beat, _) in view.heartbeats(attempt).items() if who.startswith("rank-")}
    yield f"{attempt}/heartbeats", ["\n".join([*watched(events), *lagging(beats)]).encode()]
    for name, blocks in _black_boxes(view, attempt, left_out):
        if name not in logs:  # a log's end that is here in full
            yield name, blocks


def _black_boxes(view: RunView, attempt: str, left_out: list[str]) -> Iterator[Item]:
    """What was kept of its machines. Hostile like any bundle: whoever may write to the store may have put it there."""
    for info in view.store.list(f"{keys.black_boxes(view.team, view.run, attempt)}/"):
        if info.size > BOX_BYTES:
            left_out.append(f"{info.key}: larger than {BOX_BYTES >> 20} MiB")
            continue
        file = io.BytesIO(view.store.get(info.key))
        for name, blocks in bundle_items(Path(info.key), left_out, Limits(10_000, 4 * BOX_BYTES), file):
            own = name.endswith(".stacks.txt")
            yield f"{attempt}/{name}", [of_the_loop(b"".join(blocks))] if own else blocks


def of_the_loop(stacks: bytes) -> bytes:
    """Of faulthandler's stacks the threads that matter: the one that crashed or wrote them, and the loop's. Helpers
    always wait in a queue or a socket, which means nothing."""
    sections = _THREAD.split(stacks)
    return b"".join(
        part for part in sections if not part.startswith(b"Thread") or any(frame in part for frame in _LOOP)
    )


def watched(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the run's own monitor has said. What it was not certain of counts only near the end: a rank that was late an
    hour ago and went on explains nothing."""
    last = max((float(event["at"]) for event in events), default=0.0)
    said = [event for event in events if event["kind"] in WATCHED]
    lasting = [event for event in said if event.get("certain") or float(event["at"]) > last - NEAR_END_S]
    return [f"{strftime('%Y-%m-%d %H:%M:%S', gmtime(float(event['at'])))} {event['what']}" for event in lasting]


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
