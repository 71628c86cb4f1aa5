"""Where the parts of a run's record lie, below the prefix that `storage.layout` gives an attempt."""

from __future__ import annotations

from typing import Literal

from warpbeam.storage.layout import check_name, record_prefix

Stream = Literal["events", "metrics", "logs"]


def streams(team: str, run: str, attempt: str, kind: Stream) -> str:
    """Prefix of one kind of stream, of all processes."""
    return f"{record_prefix(team, run, attempt)}/{kind}"


def stream(team: str, run: str, attempt: str, kind: Stream, who: str) -> str:
    """Prefix of one process's stream."""
    return f"{streams(team, run, attempt, kind)}/{check_name(who, 'process')}"


def stop(team: str, run: str, attempt: str) -> str:
    """Key whose presence asks the attempt to stop."""
    return f"{record_prefix(team, run, attempt)}/stop.json"


def facts(team: str, run: str, attempt: str) -> str:
    """Key of what was fixed at the attempt's start: job, plan, pool digest, versions, bundle."""
    return f"{record_prefix(team, run, attempt)}/attempt.json"


def summary(team: str, run: str, attempt: str) -> str:
    """Key of how the attempt ended: state, reason, time buckets."""
    return f"{record_prefix(team, run, attempt)}/summary.json"


def go(team: str, run: str, attempt: str) -> str:
    """Key of the driver's word to waiting ranks: the data is there, or the attempt is called off."""
    return f"{record_prefix(team, run, attempt)}/go.json"


def survivor(team: str, run: str, attempt: str) -> str:
    """Key that the rank creates which saves the state of an attempt that has failed: one of those that are left."""
    return f"{record_prefix(team, run, attempt)}/survivor.json"


def outcome(team: str, run: str, attempt: str) -> str:
    """Key of what rank 0's engine returned."""
    return f"{record_prefix(team, run, attempt)}/outcome.json"


def black_boxes(team: str, run: str, attempt: str) -> str:
    """Prefix of what is kept of an attempt that ended badly."""
    return f"{record_prefix(team, run, attempt)}/black-box"


def black_box(team: str, run: str, attempt: str, who: str) -> str:
    """Key of one machine's part of it, or the driver's."""
    return f"{black_boxes(team, run, attempt)}/{check_name(who, 'machine')}.tar.gz"


def diagnosis(team: str, run: str, attempt: str) -> str:
    """Key of what the doctor has said while the attempt ran."""
    return f"{record_prefix(team, run, attempt)}/diagnosis.json"
