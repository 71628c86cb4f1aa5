"""Ask an attempt to stop through its record, so that asking works from any machine that reaches the store."""

from __future__ import annotations

import json
import time

from warpbeam.checkpoint.log import newest_claim
from warpbeam.checkpoint.members import Member, this_process
from warpbeam.record import keys
from warpbeam.record.view import RunView

SCHEMA = "warpbeam/stop/v1"


def request_stop(view: RunView, *, by: str, reason: str = "asked") -> None:
    """Leave a request for the attempt that holds the claim; its ranks see it within seconds and agree on the step."""
    attempt = view.attempts()[-1]
    request = {"schema": SCHEMA, "by": by, "reason": reason, "at": round(time.time(), 3)}
    view.store.put(keys.stop(view.team, view.run, attempt), json.dumps(request).encode())


def members(view: RunView, attempt: str) -> list[Member]:
    """Every process of an attempt that the log or a heartbeat names."""
    found = {(member.pid, member.start, member.boot_id): member for member in view.log.members_of(attempt)}
    for beat, _ in view.heartbeats(attempt).values():
        member = Member.from_dict(beat)
        found.setdefault((member.pid, member.start, member.boot_id), member)
    return list(found.values())


def kill_here(view: RunView) -> tuple[int, set[str]]:
    """SIGKILL the attempt's other processes on this machine, driver first; returns (how many, hosts of those
    elsewhere).
    """
    claim = newest_claim(view.log.read())
    if claim is None:
        return 0, set()
    own = this_process("")
    found = [member for member in members(view, claim.attempt) if not member.same_process(own)]
    here = [member for member in found if member.is_running()]
    for member in sorted(here, key=lambda member: member.role != "driver"):
        member.kill()
    return len(here), {member.host for member in found if not member.is_here}
