"""One holder at a time: a Lease of coordination.k8s.io, taken and renewed by compare-and-set on its version.

The package's own leader election works on its generated classes and a global configuration, and ends the process by
itself; what is needed of it is these two functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from warpbeam.errors import WarpbeamError

Object = Mapping[str, Any]

DURATION_S: Final = 30
"""A holder that has not renewed for so long is gone."""
RENEW_S: Final = 10


class Leases(Protocol):
    """What is asked of a cluster here."""

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any] | None:
        """One object."""

    def create(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A new object."""

    def patch(self, kind: str, name: str, namespace: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Merge patch."""


@dataclass(frozen=True)
class Place:
    """Which Lease, and who asks."""

    namespace: str
    name: str
    me: str


def wanted(lease: Object | None, place: Place, now: datetime) -> dict[str, Any] | None:
    """The change by which `me` holds it, or None where somebody else does. Pure.

    A lease that is not there is an empty change of nothing: it is created from the same spec.
    """
    spec = dict((lease or {}).get("spec", {}))
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    moment = now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    mine = {"holderIdentity": place.me, "leaseDurationSeconds": DURATION_S, "renewTime": moment}
    if holder == place.me:
        return mine
    if holder and renewed and (now - datetime.fromisoformat(renewed)).total_seconds() <= DURATION_S:
        return None
    return {**mine, "acquireTime": moment, "leaseTransitions": int(spec.get("leaseTransitions", 0)) + bool(holder)}


def hold(leases: Leases, place: Place, now: datetime) -> bool:
    """Take or renew it; False where somebody else has it, or was quicker."""
    lease = leases.get("Lease", place.name, place.namespace)
    spec = wanted(lease, place, now)
    if spec is None:
        return False
    try:
        if lease is None:
            metadata = {"name": place.name, "namespace": place.namespace}
            leases.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})
        else:
            version = {"resourceVersion": lease["metadata"]["resourceVersion"]}
            leases.patch("Lease", place.name, place.namespace, {"metadata": version, "spec": spec})
    except WarpbeamError as error:
        if error.reason in ("kube_changed", "kube_exists"):
            return False
        raise
    return True


def let_go(leases: Leases, place: Place) -> None:
    """Whoever waits need not wait for the end of the duration."""
    lease = leases.get("Lease", place.name, place.namespace)
    if lease is not None and lease.get("spec", {}).get("holderIdentity") == place.me:
        version = {"resourceVersion": lease["metadata"]["resourceVersion"]}
        leases.patch("Lease", place.name, place.namespace, {"metadata": version, "spec": {"holderIdentity": ""}})
