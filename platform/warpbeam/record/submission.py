"""What was sent to a cluster, by whom and when: written once by the submitter, so that a run is known before its driver
lives, and found in its cluster later. If it ends before a driver has claimed the run, its end is written beside it.
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from warpbeam.checkpoint.schema import WRITER, check_schema
from warpbeam.errors import Owner, WarpbeamError
from warpbeam.record.states import RunState
from warpbeam.storage.layout import index_key, index_prefix, parse_index_key, submitted_prefix

if TYPE_CHECKING:
    from warpbeam.record.view import RunView
    from warpbeam.storage.store import ObjectStore

SCHEMA: Final = "warpbeam/submission/v1"
END_SCHEMA: Final = "warpbeam/submission-end/v1"


@dataclass(frozen=True)
class Submission:
    """One sending.

    Args:
        context: what the submitter's kubeconfig calls the cluster; another machine may call it otherwise.
        name: of the RayJob.
        uid: of that very RayJob.
    """

    team: str
    run: str
    by: str
    at: float
    namespace: str
    name: str
    uid: str
    context: str
    server: str
    pool: str
    job_digest: str
    pool_digest: str
    bundle: str
    job: dict[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True)
class SubmissionEnd:
    """How one ended without a driver that could have said so."""

    state: RunState
    reason: str
    sentence: str
    owner: Owner
    exit_code: int


def new_id(now: float | None = None) -> str:
    """Sorts by time; two of one second differ."""
    moment = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    return f"{moment:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def write_submission(store: ObjectStore, submission: Submission) -> str:
    """Keep it for good, and let listings see the run; returns its id."""
    name = new_id(submission.at)
    value = {"schema": SCHEMA, "writer": WRITER, **asdict(submission), "id": name}
    prefix = submitted_prefix(submission.team, submission.run)
    store.put_if_absent(f"{prefix}/{name}.json", json.dumps(value).encode())
    _hint(store, submission, RunState.WAITING)
    return name


def newest_submission(view: RunView) -> tuple[Submission, float] | None:
    """The last one and its age in seconds by the store's clock; None where there is none."""
    prefix = submitted_prefix(view.team, view.run)
    infos = [info for info in view.store.list(f"{prefix}/") if not info.key.endswith(".end.json")]
    if not infos:
        return None
    newest = max(infos, key=lambda info: info.key)
    value = json.loads(view.store.get(newest.key))
    check_schema(value.pop("schema"), SCHEMA, newest.key)
    value.pop("writer", None)
    return Submission(**value), newest.age_s


def write_end(store: ObjectStore, submission: Submission, end: SubmissionEnd) -> None:
    """The first who sees it says it; later ones change nothing."""
    key = f"{submitted_prefix(submission.team, submission.run)}/{submission.id}.end.json"
    if store.put_if_absent(key, json.dumps({"schema": END_SCHEMA, "writer": WRITER, **asdict(end)}).encode()):
        _hint(store, submission, end.state)


def read_end(store: ObjectStore, submission: Submission) -> SubmissionEnd | None:
    """Its end, where somebody saw it."""
    key = f"{submitted_prefix(submission.team, submission.run)}/{submission.id}.end.json"
    if store.head(key) is None:
        return None
    value = json.loads(store.get(key))
    check_schema(value["schema"], END_SCHEMA, key)
    return SubmissionEnd(
        RunState(value["state"]), value["reason"], value["sentence"], value["owner"], value["exit_code"]
    )


def _hint(store: ObjectStore, submission: Submission, state: RunState) -> None:
    """Let listings see the run, in the place of what they saw before; a driver that claims it writes its own. Only a
    hint: who may not write or delete it is not stopped by that."""
    prefix = f"{index_prefix(submission.team)}/{submission.run}/"
    with suppress(WarpbeamError):
        there = {info.key: parse_index_key(info.key) for info in store.list(prefix)}
        step = max((hint.step for hint in there.values() if hint is not None), default=0)
        key = index_key(submission.team, submission.run, state, step, time.time())
        store.put(key, json.dumps({"schema": "warpbeam/index/v1", "writer": WRITER}).encode())
        for old in there:
            if old != key:
                store.delete(old)
