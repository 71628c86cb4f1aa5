"""The gate's process: hold the Lease, read the cluster, do what `gate.steps` says; again every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from warpbeam.errors import WarpbeamError
from warpbeam.kube.client_errors import Dropped
from warpbeam.kube.gate import Holdings, steps
from warpbeam.kube.lease import DURATION_S, Leases, Place, hold

if TYPE_CHECKING:
    from warpbeam.kube.client import Listing

LEASE: Final = "warpbeam-gate"
EVERY_S: Final = 5.0


class Cluster(Leases, Protocol):
    """What is asked of a cluster here."""

    def list(self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "") -> Listing:
        """All objects now."""


class Gate:
    """One candidate for the gate's place.

    Args:
        say: hears what is done, and what cannot be.
    """

    def __init__(
        self,
        cluster: Cluster,
        place: Place,
        say: Callable[[str], None],
        *,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._place = place
        self._say = say
        self._wall = wall
        self._now = now
        self._holds: bool | None = None
        self._away = False

    def turn(self) -> int:
        """One round; how many changes were made. A server that is away for a moment is no error."""
        try:
            made = self._turn()
        except Dropped as error:
            if not self._away:
                self._say(f"{error.what}; trying again")
            self._away = True
            return 0
        self._away = False
        return made

    def _turn(self) -> int:
        began = self._now()
        holds = hold(self._cluster, self._place, self._wall())
        if holds is not self._holds:
            self._say("this is the gate now" if holds else "another process is the gate; waiting")
        self._holds = holds
        if not holds:
            return 0
        made = 0
        for step in steps(self._read(), self._wall()):
            if self._now() - began > DURATION_S / 2:
                break  # another may soon hold the Lease; what is left is found again at the next turn
            made += self._carry_out(step.namespace, step.name, step.change, step.line)
        return made

    def _read(self) -> Holdings:
        """RayJobs first: what is bound after they were read is counted twice at worst, never missed."""
        jobs = self._cluster.list("RayJob").items
        pods = self._cluster.list("Pod", fields="status.phase!=Succeeded,status.phase!=Failed").items
        return Holdings(jobs, self._cluster.list("Node").items, pods, self._cluster.list("ResourceQuota").items)

    def _carry_out(self, namespace: str, name: str, change: Mapping[str, Any], line: str) -> int:
        try:
            self._cluster.patch("RayJob", name, namespace, change)
        except WarpbeamError as error:
            if error.reason not in ("kube_changed", "kube_missing"):
                self._say(f"{namespace}/{name}: {error.what}")
            return 0
        self._say(line)
        return 1
