"""What people want of a run, whatever becomes of its attempts: that it runs, or that it stops.

`stop.json` of an attempt ends that attempt. Where something else begins another one (KubeRay after a lost head, a queue
that lets a suspended run in again), that wish would be lost with the attempt; this one stays until somebody submits the
run anew.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from warpbeam.checkpoint.schema import check_schema
from warpbeam.storage.layout import run_prefix

if TYPE_CHECKING:
    from warpbeam.record.view import RunView
    from warpbeam.storage.store import ObjectStore

SCHEMA: Final = "warpbeam/desired/v1"
Wish = Literal["running", "stopped"]


@dataclass(frozen=True)
class Desired:
    """The newest wish.

    Args:
        at: unix time of whoever wrote it, in seconds.
    """

    state: Wish
    by: str
    at: float


def key(team: str, run: str) -> str:
    """Key of the wish; overwritten by the next one."""
    return f"{run_prefix(team, run)}/desired.json"


def write_desired(store: ObjectStore, team: str, run: str, state: Wish, *, by: str) -> None:
    """Say what is wanted from now on."""
    value = {"schema": SCHEMA, "state": state, "by": by, "at": round(time.time(), 3)}
    store.put(key(team, run), json.dumps(value).encode())


def read_desired(store: ObjectStore, team: str, run: str) -> Desired | None:
    """The newest wish; None where nobody has said anything."""
    where = key(team, run)
    if store.head(where) is None:
        return None
    value = json.loads(store.get(where))
    check_schema(value["schema"], SCHEMA, where)
    return Desired(value["state"], str(value["by"]), float(value["at"]))


def stop_is_wanted(view: RunView, *, since: float | None) -> bool:
    """Whether somebody has asked this submission to stop.

    Args:
        since: when the submission was made, as unix time; a wish that is older was meant for another one. None: any
            counts.
    """
    found = read_desired(view.store, view.team, view.run)
    return found is not None and found.state == "stopped" and (since is None or found.at >= since)
