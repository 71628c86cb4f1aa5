"""A run that trains, as its record tells: faults in the middle of it, and how long it takes until it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kube.runs import Run, Tell
from tests.kube.user import Command
from warpbeam.record.view import RunView


def let_in(run: Run, command: Command, tell: Tell) -> str:
    """From the submission to the first steps; returns the cluster's name."""
    began = time.monotonic()
    run.until("the RayJob", lambda run: run.is_there() or command.ended, 60)
    assert run.is_there(), command.said
    run.until("the operator's look at it", lambda run: run.status() == "Suspended", 30)
    assert not run.pods(), "nothing starts before it is let in"
    run.let_in()
    run.until("both pods of ranks", lambda run: len(placed(run)) == 2, 60)
    run.until("the job", lambda run: run.status() == "Running", 180)
    tell(f"submit -> job running {time.monotonic() - began:.0f} s")
    return run.cluster_name()


@contextmanager
def timed(what: str, run: Run, view: RunView, tell: Tell) -> Iterator[None]:
    """Let a fault happen in the middle of an attempt, and wait until a new cluster trains on; tells the seconds."""
    run.until("a checkpoint of the newest attempt", lambda _: committed(view), 240)
    before, cluster, known, began = committed(view), run.cluster_name(), view.attempts(), time.monotonic()
    yield
    run.until("a new cluster", lambda run: run.cluster_name() not in ("", cluster), 240)
    remade_s = time.monotonic() - began
    first = next_attempt(run, view, known)
    trains_s = time.monotonic() - began
    tell(f"{what} after a checkpoint of step {before}: new cluster {remade_s:.0f} s, step {first} {trains_s:.0f} s")
    assert first > before, "it goes on from its newest checkpoint"


def next_attempt(run: Run, view: RunView, known: list[str]) -> int:
    """Wait until an attempt that was not known trains; its first step."""
    run.until("the next step", lambda _: view.attempts()[-1] not in known and steps(view), 240)
    return steps(view)[0]


def committed(view: RunView) -> int:
    """The step of the newest checkpoint, where the newest attempt has made it."""
    newest, attempts = view.log.newest_commit(), view.attempts()
    return newest.step or 0 if newest and attempts and newest.attempt == attempts[-1] else 0


def steps(view: RunView) -> list[int]:
    """Those that the newest attempt has taken."""
    attempts = view.attempts()
    return [int(row["step"]) for row in view.metrics(attempts[-1])] if attempts else []


def placed(run: Run) -> list[str]:
    """The nodes of the ranks' pods."""
    return sorted(node for pod in run.pods_of("worker") if (node := pod["spec"].get("nodeName")))
