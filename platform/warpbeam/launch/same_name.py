"""What a command means when a run of its name is already there (DESIGN §6, "The same name again"). Pure.

Nothing is ever silently resumed from, or written over, another experiment of the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from warpbeam.errors import UserError
from warpbeam.plan.compare import Change
from warpbeam.record.states import RunState


@dataclass(frozen=True)
class Begin:
    """Nothing of this name is there, or nothing of it was kept: what an earlier attempt froze is void."""


@dataclass(frozen=True)
class GoOn:
    """Resume; what differs from the run so far."""

    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Finished:
    """It is done and this is the same job: nothing to do."""


def decide(
    run: str, state: RunState | None, changes: Sequence[Change], allowed: Collection[str] = (), *, kept: bool = True
) -> Begin | GoOn | Finished:
    """What to do, or the reason not to.

    Args:
        state: of the run in the store; None when there is none.
        changes: of the job since the run began.
        allowed: keys that the user has agreed to (`--allow train.lr`).
        kept: it has a checkpoint. Without one there is nothing that another job file could spoil.

    Raises:
        UserError: finished and changed, or changed in a way that was not agreed to or cannot be.
    """
    if state is None:
        return Begin()
    if state is RunState.DONE:
        if not changes:
            return Finished()
        raise UserError(
            f"run {run!r} is finished, and the job file has changed since",
            why=_list(changes),
            fix="`--fresh` trains it anew under the next free name (or write another `name:`); "
            f"the finished run stays as it is: `warpbeam status {run}`",
            reason="finished_and_changed",
        )
    if changes and not kept:
        return Begin()
    impossible = [change for change in changes if change.kind == "impossible"]
    if impossible:
        raise UserError(
            f"run {run!r} cannot go on with this job file: it would be another experiment",
            why=_list(impossible),
            fix="put the old values back to resume, or `--fresh` to train anew under the next free name",
            reason="changed_impossible",
        )
    asked = [change for change in changes if change.kind == "allow" and change.key not in allowed]
    if asked:
        flags = " ".join(f"--allow {change.key}" for change in asked)
        raise UserError(
            f"run {run!r} is unfinished, and the job file has changed since",
            why=_list(asked),
            fix=f"put the old values back, or agree: {flags}; or `--fresh`",
            reason="changed",
        )
    return GoOn(tuple(changes))


def next_name(name: str, taken: Collection[str]) -> str:
    """The first of `name`, `name-2`, `name-3`, ... that is not taken."""
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def describe(changes: Sequence[Change]) -> list[str]:
    """`key: old -> new` of each value that differs, down to the keys inside a section."""
    return [line for change in changes for line in _differences(change.key, change.old, change.new)]


def _list(changes: Sequence[Change]) -> str:
    return "\n".join(describe(changes))


def _differences(key: str, old: object, new: object) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from _differences(f"{key}.{name}", old.get(name), new.get(name))
    elif isinstance(old, Sequence) and isinstance(new, Sequence) and not isinstance(old, str) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{key}[{number}]", one, other)
    elif old != new:
        yield f"{key}: {_short(old)} -> {_short(new)}"


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
