"""What a RayJob of the same name means, and the order in which things are made."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.kube.orders import job, order
from tests.unit.record.memory_store import MemoryStore
from warpbeam.errors import InfraError, UserError
from warpbeam.kube import names
from warpbeam.kube.render import render
from warpbeam.launch.kube_submit import There, replace_ended, send, there_is, try_out
from warpbeam.record.desired import read_desired
from warpbeam.record.submission import newest_submission
from warpbeam.record.view import RunView, find_run, list_runs

Object = dict[str, Any]
RENDERED = render(order())
JOB = RENDERED.documents[-1]


def live(said: str = "Running", **annotations: str) -> Object:
    found: Object = copy.deepcopy(dict(JOB))
    found["metadata"] |= {"uid": "u1"}
    found["metadata"]["annotations"] |= annotations
    return found | {"status": {"jobDeploymentStatus": said}}


def test_what_is_there() -> None:
    assert there_is(None, JOB) is There.NOTHING
    assert there_is(live(), JOB) is There.SAME
    assert there_is(live("Retrying"), JOB) is There.SAME
    for said in ("Complete", "Failed", "ValidationFailed"):
        assert there_is(live(said), JOB) is There.ENDED
    assert there_is(live("Suspended", **{names.GIVEN_BACK: "2026-01-01T00:00:00Z"}), JOB) is There.ENDED
    leaving = live()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert there_is(leaving, JOB) is There.ENDED


def test_a_live_run_with_another_folder_is_refused() -> None:
    with pytest.raises(UserError, match="the folder has changed since") as caught:
        there_is(live(**{names.BUNDLE: "other"}), JOB)
    assert caught.value.reason == "already_running"
    assert there_is(live("Failed", **{names.BUNDLE: "other"}), JOB) is There.ENDED


def test_somebody_elses_object_is_refused() -> None:
    foreign = live("Complete")
    foreign["metadata"]["labels"] = {}
    with pytest.raises(UserError, match="not this run's") as caught:
        there_is(foreign, JOB)
    assert caught.value.reason == "name_taken"
    foreign["metadata"]["labels"] = {names.RUN: "tiny", names.TEAM: "blue"}
    with pytest.raises(UserError, match="it belongs to run blue/tiny"):
        there_is(foreign, JOB)


class Server:
    """Keeps what is applied; `gone_after` is how often a deleted object is still seen."""

    context, server = "lab", "https://api"

    def __init__(self, gone_after: int = 0) -> None:
        self.applied: list[tuple[str, str, bool]] = []
        self.gone_after = gone_after
        self.deleted = ""

    def apply(self, document: Mapping[str, Any], *, dry_run: bool = False, force: bool = False) -> Object:
        assert not force
        self.applied.append((document["kind"], document["metadata"]["name"], dry_run))
        return {**document, "metadata": {**document["metadata"], "uid": "u2"}}

    def delete(self, kind: str, name: str, namespace: str = "", *, uid: str = "") -> bool:
        self.deleted = uid
        return True

    def get(self, kind: str, name: str, namespace: str = "") -> Object | None:
        self.gone_after -= 1
        return live() if self.gone_after >= 0 else None


def test_everything_is_tried_before_anything_is_made() -> None:
    server = Server()
    try_out(server, RENDERED.documents, taken=False)  # type: ignore[arg-type]
    assert [kind for kind, _, dry in server.applied if dry] == ["Role", "NetworkPolicy", "RayJob"]
    assert server.applied[-1][1] == "tiny"
    try_out(server, RENDERED.documents, taken=True)  # type: ignore[arg-type]
    assert server.applied[-1][1] == "tiny-trial", "the ended one has the name still"
    assert all(dry for _, _, dry in server.applied)


def test_an_ended_one_goes_by_its_uid_and_is_waited_for() -> None:
    server, pauses = Server(gone_after=3), []
    replace_ended(server, live("Complete"), sleep=pauses.append)  # type: ignore[arg-type]
    assert (server.deleted, len(pauses)) == ("u1", 3)
    clock = iter(range(0, 1000, 10))
    with pytest.raises(InfraError, match="does not go"):
        replace_ended(
            Server(gone_after=100),  # type: ignore[arg-type]
            live("Complete"),
            sleep=lambda s: None,
            now=lambda: float(next(clock)),
        )


def test_a_sent_run_is_known_before_its_driver_lives() -> None:
    store = MemoryStore()
    sent = send(Server(), store, order(), RENDERED.documents)  # type: ignore[arg-type]
    assert (sent.target.namespace, sent.target.name, sent.uid, sent.queued) == ("team-red", "tiny", "u2", False)
    desired = read_desired(store, "red", "tiny")  # type: ignore[arg-type]
    assert desired is not None
    assert desired.state == "running"
    (line,) = list_runs(store)  # type: ignore[arg-type]
    assert (line.run, line.state) == ("tiny", "waiting")
    view = find_run(store, "tiny")  # type: ignore[arg-type]
    assert isinstance(view, RunView)
    found = newest_submission(view)
    assert found is not None
    submission, _ = found
    assert (submission.uid, submission.context, submission.job["name"]) == ("u2", "lab", job().name)
