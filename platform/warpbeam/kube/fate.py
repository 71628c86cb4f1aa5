"""How a run on Kubernetes has ended, and the exit code that a command gets for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warpbeam.errors import Owner
from warpbeam.kube.why import Seen, verdict
from warpbeam.record.states import RunState

_BY_OWNER: Final[Mapping[Owner, int]] = {"ml": 1, "platform": 3, "infra": 3, "unknown": 4}
_BY_STATE: Final[Mapping[RunState, int]] = {RunState.DONE: 0, RunState.STOPPED: 1}
_PROGRAM: Final = re.compile(r"entrypoint command failed with exit code (\d+)")
"""Ray's words. The program is `warpbeam run`, whose exit codes are the command line's own."""


@dataclass(frozen=True)
class Fate:
    """An end.

    Args:
        exit_code: as DESIGN section 7 has them.
    """

    state: RunState
    reason: str
    sentence: str
    owner: Owner
    exit_code: int


def fate_of(seen: Seen) -> Fate | None:
    """The end of a RayJob; None while it goes on."""
    found = verdict(seen)
    if not found.state.ended:
        return None
    failed = found.state is RunState.FAILED
    code = (_program_code(seen) if failed else None) or exit_code_of(found.state, found.owner)
    return Fate(found.state, found.reason, found.sentence, found.owner, code)


def exit_code_of(state: RunState, owner: Owner) -> int:
    """0 done, 1 stopped or the job's own doing, 3 the platform's or a machine's, 4 not known."""
    if state is RunState.FAILED:
        return _BY_OWNER[owner]
    return _BY_STATE.get(state, 4)


def _program_code(seen: Seen) -> int | None:
    found = _PROGRAM.search(seen.ray_job.get("status", {}).get("message", ""))
    code = int(found[1]) if found else 0
    return code if 0 < code < 5 else None
