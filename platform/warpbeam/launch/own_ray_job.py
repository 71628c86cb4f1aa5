"""The RayJob that a driver in a pod belongs to: its retries are the driver's to lend and to take away.

KubeRay retries whatever fails, a program's own mistake too, with a whole new cluster. So a RayJob is made without
retries; the driver lends it some for the time in which a lost head would be nobody's fault, and takes them away before
it ends for good (docs/adr/0017).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from warpbeam.errors import Owner, WarpbeamError
from warpbeam.kube import names
from warpbeam.launch.failure import Cause
from warpbeam.record.states import RunState

_ANOTHER_CLUSTER_MAY_HELP = frozenset({Cause.INFRA.value, Cause.NODE_LOST.value, "too_many_failures"})


class Rights(Protocol):
    """What the Role of a run's driver allows: `client.Cluster` has it."""

    @property
    def namespace(self) -> str:
        """The pod's."""

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any] | None:
        """One object."""

    def patch(self, kind: str, name: str, namespace: str, change: dict[str, Any]) -> dict[str, Any]:
        """Merge patch."""


class OwnRayJob:
    """One RayJob, by the rights of its driver. Whatever fails here is told and harms nothing.

    Args:
        connect: made when it is first needed: most of a run never asks.
    """

    def __init__(self, name: str, connect: Callable[[], Rights], on_trouble: Callable[[str], None]) -> None:
        self.name = name
        self._connect = connect
        self._on_trouble = on_trouble
        self._rights: Rights | None = None

    def lend_retries(self) -> None:
        """From now on a lost head or cluster is tried again, as often as the pool says."""
        try:
            job = self._get()
            lent = int(((job or {}).get("metadata", {}).get("annotations") or {}).get(names.RETRIES, "0"))
            if lent:
                self._patch(lent)
        except (WarpbeamError, ValueError, ImportError) as error:
            self._on_trouble(f"a lost head will not be tried again: RayJob {self.name} cannot be changed: {error}")

    def take_retries(self) -> None:
        """From now on whatever ends is over."""
        try:
            self._patch(0)
        except (WarpbeamError, ImportError) as error:
            self._on_trouble(f"RayJob {self.name} may be tried again although the run is over: {error}")

    def made_at(self) -> float | None:
        """Unix time of its creation; None where that cannot be told."""
        try:
            job = self._get()
            return datetime.fromisoformat(job["metadata"]["creationTimestamp"]).timestamp() if job else None
        except (WarpbeamError, ImportError) as error:
            self._on_trouble(f"RayJob {self.name} cannot be read: {error}")
            return None

    def _get(self) -> dict[str, Any] | None:
        rights = self._with_rights()
        return rights.get("RayJob", self.name, rights.namespace)

    def _patch(self, limit: int) -> None:
        rights = self._with_rights()
        rights.patch("RayJob", self.name, rights.namespace, {"spec": {"backoffLimit": limit}})

    def _with_rights(self) -> Rights:
        if self._rights is None:
            self._rights = self._connect()
        return self._rights


def own_ray_job(on_trouble: Callable[[str], None]) -> OwnRayJob | None:
    """The one whose head this process runs on; None elsewhere."""
    name = os.environ.get(names.RAY_JOB_ENV)
    return OwnRayJob(name, _inside, on_trouble) if name else None


def over_for_good(state: RunState, reason: str, owner: Owner) -> bool:
    """Whether another cluster would only end the same way, or is not wanted. A run that was interrupted (its pod had to
    go) is wanted; one whose machines failed may do better on others."""
    if state is RunState.STOPPED:
        return reason == "asked"
    if state is RunState.FAILED:
        return not (owner == "infra" and reason in _ANOTHER_CLUSTER_MAY_HELP)
    return False


def _inside() -> Rights:
    from warpbeam.kube.client import Cluster

    return Cluster.inside()
