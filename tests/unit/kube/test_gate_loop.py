"""The gate's rounds against a server that is stepped by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.unit.kube.test_gate import gpus, suspended
from tests.unit.kube.test_lease import ME, OTHER, Leases
from warpbeam.kube.client_errors import Busy, Dropped
from warpbeam.kube.gate_loop import Gate
from warpbeam.kube.gate_manifests import gate_manifests
from warpbeam.kube.lease import DURATION_S
from warpbeam.pool import Image

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


class Listing:
    version = "1"

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items


class Server(Leases):
    """RayJobs, nodes, and a Lease; fails as often as `away` says."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        super().__init__()
        self.jobs = {job["metadata"]["name"]: job for job in jobs}
        self.away = 0
        self.stale = False

    def list(self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "") -> Any:
        if self.away:
            self.away -= 1
            raise Dropped("nobody there")
        return Listing({"RayJob": list(self.jobs.values()), "Node": gpus(2)}.get(kind, []))

    def patch(self, kind: str, name: str, namespace: str, change: Mapping[str, Any]) -> dict[str, Any]:
        if kind == "Lease":
            return super().patch(kind, name, namespace, change)
        if self.stale:
            raise Busy("changed", reason="kube_changed")
        self.jobs[name]["spec"] |= change.get("spec", {})
        annotations = self.jobs[name]["metadata"]["annotations"]
        annotations |= {key: value for key, value in change["metadata"]["annotations"].items() if value is not None}
        return self.jobs[name]


def gate(server: Server, said: list[str] | None = None, *, place: Any = ME, now: Any = lambda: 0.0) -> Gate:
    return Gate(server, place, (said if said is not None else []).append, wall=lambda: NOW, now=now)


def test_a_round_lets_in_what_fits_and_tells_the_rest_why() -> None:
    server = Server(suspended("first"), suspended("second", "2026-01-01T11:30:00Z"))
    said: list[str] = []
    keeper = gate(server, said)
    assert keeper.turn() == 2
    assert [server.jobs[name]["spec"]["suspend"] for name in ("first", "second")] == [False, True]
    assert said[0] == "this is the gate now"
    assert "team-red/first: let in, all of it fits" in said
    assert keeper.turn() == 0, "nothing is done or said twice"


def test_only_the_holder_acts() -> None:
    server = Server(suspended())
    assert gate(server).turn() == 1
    server.jobs["tiny"]["spec"]["suspend"] = True
    said: list[str] = []
    assert gate(server, said, place=OTHER).turn() == 0
    assert said == ["another process is the gate; waiting"]


def test_a_server_that_is_away_is_told_once_and_costs_nothing() -> None:
    server, said = Server(suspended()), []
    server.away = 2
    keeper = gate(server, said)
    assert [keeper.turn() for _ in range(3)] == [0, 0, 1]
    assert said.count("nobody there; trying again") == 1


def test_somebody_elses_change_is_heard_first() -> None:
    server, said = Server(suspended()), []
    server.stale = True
    keeper = gate(server, said)
    assert keeper.turn() == 0
    server.stale = False
    assert keeper.turn() == 1


def test_a_round_that_takes_too_long_leaves_the_rest() -> None:
    clock = iter([0.0, DURATION_S])
    server = Server(suspended())
    assert gate(server, now=lambda: next(clock)).turn() == 0
    assert server.jobs["tiny"]["spec"]["suspend"] is True


def test_the_manifests_hold_together() -> None:
    documents = gate_manifests(Image(ref=f"r.test/i@sha256:{'a' * 64}"), namespace="sys")
    kinds = [document["kind"] for document in documents]
    assert kinds[0] == "Namespace"
    assert kinds[-1] == "Deployment"
    assert {document["metadata"].get("namespace", "sys") for document in documents} == {"sys"}
    spec = documents[-1]["spec"]["template"]["spec"]
    assert spec["containers"][0]["command"] == ["warpbeam", "gate", "--namespace", "sys"]
    verbs = {verb for document in documents for rule in document.get("rules", []) for verb in rule["verbs"]}
    assert verbs == {"list", "patch", "create", "get"}
