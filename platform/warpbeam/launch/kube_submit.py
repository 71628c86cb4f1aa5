"""Send a run to Kubernetes: what a RayJob of the same name means, and the order in which things are made.

Nothing is made before everything was tried by a dry run; the wish to run and the bundle are in the store before the
RayJob is, so that its pods find both.
"""

from __future__ import annotations

import copy
import getpass
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from warpbeam.errors import InfraError, UserError
from warpbeam.kube import names
from warpbeam.kube.observe import Target
from warpbeam.kube.why import QUEUE_LABEL, STATES
from warpbeam.record.desired import write_desired
from warpbeam.record.states import RunState
from warpbeam.record.submission import Submission, write_submission

if TYPE_CHECKING:
    from warpbeam.kube.client import Cluster
    from warpbeam.kube.order import Order
    from warpbeam.storage.store import ObjectStore

Object = Mapping[str, Any]

GONE_S: Final = 60.0
_POLL_S: Final = 0.5
_TRIAL: Final = "-trial"


class There(StrEnum):
    """What a RayJob of this name means."""

    NOTHING = "nothing"
    SAME = "same"
    ENDED = "ended"


def there_is(live: Object | None, job: Object) -> There:
    """Compare the RayJob that is there with the rendered one.

    Raises:
        UserError: it is another run's, or this run's with another job, pool or folder, and alive.
    """
    if live is None:
        return There.NOTHING
    metadata, wanted = live["metadata"], job["metadata"]
    labels = metadata.get("labels", {})
    if any(labels.get(label) != wanted["labels"][label] for label in (names.RUN, names.TEAM)):
        whose = labels.get(names.RUN)
        raise UserError(
            f"namespace {wanted['namespace']} has a RayJob {wanted['name']} already, and it is not this run's",
            why=f"it belongs to run {labels.get(names.TEAM)}/{whose}" if whose else "warpbeam did not make it",
            fix="write another `name:` in the job file, or --fresh",
            reason="name_taken",
        )
    if metadata.get("deletionTimestamp") or _ended(live):
        return There.ENDED
    marks = (names.JOB_DIGEST, names.POOL_DIGEST, names.BUNDLE)
    annotations = metadata.get("annotations", {})
    changed = [mark for mark in marks if annotations.get(mark) != wanted["annotations"].get(mark)]
    if changed:
        what = {names.JOB_DIGEST: "the job file", names.POOL_DIGEST: "the pool", names.BUNDLE: "the folder"}
        run = wanted["labels"][names.RUN]
        raise UserError(
            f"run {run!r} is in the cluster already, and {', '.join(what[mark] for mark in changed)} has changed since",
            why=f"RayJob {wanted['name']} is {_said(live) or 'new'}",
            fix=f"`warpbeam logs -f {run}` watches it, `warpbeam stop {run}` ends it with a checkpoint; --fresh begins "
            "another one",
            reason="already_running",
        )
    return There.SAME


@dataclass(frozen=True)
class Sent:
    """A run that is in the cluster now."""

    target: Target
    uid: str
    queued: bool


def try_out(cluster: Cluster, documents: Sequence[Object], *, taken: bool) -> None:
    """Have the API server check everything, admission included, and keep nothing. A binding cannot be tried before its
    Role is there; whoever may make that Role may bind it.

    Args:
        taken: an ended RayJob has the name still: the new one is tried under another.

    Raises:
        WarpbeamError: it would not be taken.
    """
    for document in documents:
        if document["kind"] == "RoleBinding":
            continue
        tried = copy.deepcopy(dict(document))
        if taken and document["kind"] == "RayJob":
            tried["metadata"]["name"] = document["metadata"]["name"][: names.MOST_CHARACTERS - len(_TRIAL)] + _TRIAL
        cluster.apply(tried, dry_run=True)


def replace_ended(
    cluster: Cluster,
    live: Object,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Delete a RayJob that has ended, and wait until its name is free.

    Raises:
        InfraError: it stays.
    """
    name, namespace, uid = (live["metadata"][key] for key in ("name", "namespace", "uid"))
    cluster.delete("RayJob", name, namespace, uid=uid)
    deadline = now() + GONE_S
    while (found := cluster.get("RayJob", name, namespace)) is not None and found["metadata"]["uid"] == uid:
        if now() > deadline:
            raise InfraError(
                f"RayJob {name} has ended and was deleted, but it does not go",
                why="the KubeRay operator holds it by a finalizer, and does not let go",
                fix="ask the platform team whether the operator runs: `kubectl get pods -A -l "
                "app.kubernetes.io/name=kuberay-operator`",
                reason="rayjob_stays",
            )
        sleep(_POLL_S)


def send(cluster: Cluster, store: ObjectStore, order: Order, documents: Sequence[Object]) -> Sent:
    """Apply all documents; the run's record knows of it from now on."""
    team, run, by = order.job.team, order.job.name, getpass.getuser()
    write_desired(store, team, run, "running", by=by)
    made: dict[str, Any] = {}
    for document in documents:
        made = cluster.apply(document)
    assert made["kind"] == "RayJob", made["kind"]
    metadata = made["metadata"]
    write_submission(
        store,
        Submission(
            team=team,
            run=run,
            by=by,
            at=round(time.time(), 3),
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            context=cluster.context,
            server=cluster.server,
            pool=order.pool.name,
            job_digest=order.job_digest,
            pool_digest=order.pool_digest,
            bundle=order.bundle.digest if order.bundle else "",
            job=order.job.to_dict(),
        ),
    )
    return sent(made)


def sent(job: Object) -> Sent:
    """A RayJob that is there, as what a follower wants to know of it."""
    metadata = job["metadata"]
    labels = metadata["labels"]
    target = Target(metadata["namespace"], metadata["name"], labels[names.RUN], labels[names.TEAM])
    return Sent(target, metadata["uid"], QUEUE_LABEL in labels)


def _ended(job: Object) -> bool:
    given_back = names.GIVEN_BACK in (job["metadata"].get("annotations") or {})
    return given_back or STATES.get(_said(job), RunState.WAITING).ended


def _said(job: Object) -> str:
    return str(job.get("status", {}).get("jobDeploymentStatus", ""))
