"""Where the parts of a run's record lie, below the prefix that `storage.layout` gives an attempt."""

from __future__ import annotations

from typing import Literal

from warpbeam.storage.layout import record_prefix

Stream = Literal["events", "metrics", "logs"]


def base(team: str, run: str, attempt: str) -> str:
    """The attempt's prefix without a trailing slash."""
    return record_prefix(team, run, attempt).rstrip("/")


def stream(team: str, run: str, attempt: str, kind: Stream, who: str) -> str:
    """Prefix of one process's stream."""
    return f"{base(team, run, attempt)}/{kind}/{who}"


def heartbeat(team: str, run: str, attempt: str, who: str) -> str:
    """Key of one process's heartbeat."""
    return f"{base(team, run, attempt)}/heartbeat/{who}.json"


def stop(team: str, run: str, attempt: str) -> str:
    """Key whose presence asks the attempt to stop."""
    return f"{base(team, run, attempt)}/stop.json"
