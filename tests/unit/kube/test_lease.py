from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from warpbeam.kube.client_errors import Busy
from warpbeam.kube.lease import DURATION_S, Place, hold, let_go

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ME, OTHER = Place("sys", "gate", "me"), Place("sys", "gate", "other")


class Leases:
    """One Lease with versions, as the API server keeps it."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any] | None:
        return self.lease

    def create(self, document: Mapping[str, Any]) -> dict[str, Any]:
        return self._write(dict(document["spec"]))

    def patch(self, kind: str, name: str, namespace: str, change: Mapping[str, Any]) -> dict[str, Any]:
        assert self.lease is not None
        if change["metadata"]["resourceVersion"] != str(self.version):
            raise Busy("changed", reason="kube_changed")
        return self._write({**self.lease["spec"], **change["spec"]})

    def _write(self, spec: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = {"metadata": {"resourceVersion": str(self.version)}, "spec": spec}
        return self.lease


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_one_holds_it_until_it_is_gone_for_long() -> None:
    leases = Leases()
    assert hold(leases, ME, at(0))
    assert not hold(leases, OTHER, at(1))
    assert hold(leases, ME, at(20))
    assert not hold(leases, OTHER, at(20 + DURATION_S))
    assert hold(leases, OTHER, at(21 + DURATION_S))
    assert not hold(leases, ME, at(22 + DURATION_S))
    assert leases.lease is not None
    assert leases.lease["spec"]["leaseTransitions"] == 1


def test_whoever_lets_go_is_followed_at_once() -> None:
    leases = Leases()
    assert hold(leases, ME, at(0))
    let_go(leases, OTHER)
    assert not hold(leases, OTHER, at(1))
    let_go(leases, ME)
    assert hold(leases, OTHER, at(1))


def test_of_two_at_once_one_wins() -> None:
    leases = Leases()
    assert hold(leases, ME, at(0))
    stale = dict(leases.lease or {})
    assert hold(leases, OTHER, at(100))
    leases.get = lambda kind, name, namespace="": stale  # type: ignore[method-assign]
    assert not hold(leases, ME, at(200))
