"""Ask the cluster that a run was sent to, from whichever machine: one look, with figures of nodes for whoever may read
nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from warpbeam.errors import PlatformError, UserError, WarpbeamError
from warpbeam.kube.gang_fit import rooms
from warpbeam.kube.observe import Target, look
from warpbeam.kube.watch import Source
from warpbeam.kube.why import Seen, verdict
from warpbeam.record.submission import Submission

if TYPE_CHECKING:
    from warpbeam.kube.client import Cluster


def ask(submission: Submission, context: str | None = None) -> Seen | None:
    """What the cluster has of it; None where the RayJob is not there any more, or is another one of the same name.

    Raises:
        WarpbeamError: the cluster cannot be asked from here.
    """
    seen = look_at(connect(submission, context), target_of(submission))
    if seen is None or (submission.uid and seen.ray_job["metadata"]["uid"] != submission.uid):
        return None
    return seen


def connect(submission: Submission, context: str | None = None) -> Cluster:
    """The submission's cluster as this machine's kubeconfig knows it: by the context's name, or by its address."""
    try:
        from warpbeam.kube.client import Cluster
    except ImportError as error:
        raise needs_kube_extra() from error

    if context is not None:
        return Cluster.connect(context)
    try:
        return Cluster.connect(submission.context or None)
    except UserError as error:
        if error.reason != "no_context":
            raise
    here = Cluster.connect()
    if here.server != submission.server:
        raise UserError(
            f"the run is in the cluster {submission.server}, and your kubeconfig has no context `{submission.context}`",
            fix="say what it calls it: --context CONTEXT",
            reason="no_context",
        )
    return here


def target_of(submission: Submission) -> Target:
    """Where it is in its cluster."""
    return Target(submission.namespace, submission.name, submission.run, submission.team)


def look_at(source: Source, target: Target) -> Seen | None:
    """One look at the run, with what is free on nodes where this user may see that."""
    seen = look(source, target)
    return seen if seen is None else with_rooms(source, seen)


def with_rooms(source: Source, seen: Seen) -> Seen:
    """Node figures are for a sentence; whoever may not read them gets the scheduler's words."""
    if verdict(seen).reason not in ("gang_waits", "unschedulable"):
        return seen
    try:
        nodes, pods = source.list("Node").items, source.list("Pod").items
    except WarpbeamError as error:
        if error.reason != "kube_forbidden":
            raise
        return seen
    return replace(seen, rooms=rooms(nodes, pods))


def needs_kube_extra() -> PlatformError:
    """The official client is not installed."""
    return PlatformError(
        "this installation cannot talk to Kubernetes",
        why="the package `kubernetes` is missing",
        fix="pip install 'warpbeam[kube]'",
        reason="no_kube_extra",
    )
