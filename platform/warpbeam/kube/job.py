"""The RayJob: a cluster of its own for one run, and what happens to it at every kind of end; and its schedule.

The submission mode is K8sJobMode: of the three it is the one that ends when the head goes, and whose every pod may be
written for Pod Security `restricted` (docs/adr/0013).
"""

from __future__ import annotations

from typing import Any, Final

from warpbeam.kube import names, pods
from warpbeam.kube.cluster import API_VERSION, cluster_spec, metadata
from warpbeam.kube.gang import Gang
from warpbeam.kube.order import Kind, Order
from warpbeam.kube.resources import training_shapes

Manifest = dict[str, Any]

SUBMITTER_RETRIES: Final = 2
"""A submitter that lost its node finds the job by its id and goes on reading."""
KEEP_NO_HEAD: Final = {"ray.io/disable-provisioned-head-restart": "true"}
"""A new head would not know the job: without one the submitter fails, and the RayJob is tried on a new cluster."""
FIRING_NAME: Final = r"\${RAY_CLUSTER_NAME%-*}"
"""The firing's RayJob, whose cluster's name only adds five characters. The submitter's shell must not see the `$`."""


def ray_job(order: Order, gang: Gang) -> Manifest:
    """One run."""
    meta = metadata(order, gang)
    meta["annotations"] |= {**KEEP_NO_HEAD, names.RETRIES: str(order.kubernetes.retries)}
    return {"apiVersion": API_VERSION, "kind": "RayJob", "metadata": meta, "spec": _spec(order, gang)}


def ray_cron_job(order: Order, gang: Gang) -> Manifest:
    """One run each time. Its RayJobs get neither labels nor annotations, so a new head may appear: the first failure
    of the submitter then ends the attempt."""
    spec = _spec(order, gang)
    spec["entrypoint"] = f"{order.entrypoint} --name {FIRING_NAME}"
    spec["submitterConfig"] = {"backoffLimit": 0}
    spec["backoffLimit"] = order.kubernetes.retries  # nobody may lend them: the RayJob's name is not known yet
    return {
        "apiVersion": API_VERSION,
        "kind": "RayCronJob",
        "metadata": metadata(order, Gang()),
        "spec": {"schedule": order.schedule, "jobTemplate": spec},
    }


def _spec(order: Order, gang: Gang) -> Manifest:
    deadlines = order.kubernetes.deadlines
    run = {"warpbeam_team": order.job.team}
    if order.kind is not Kind.RAYCRONJOB:
        run = {"warpbeam_run": order.job.name, **run}
    spec: Manifest = {"suspend": True} if gang.suspend else {}
    spec |= {
        "entrypoint": order.entrypoint,
        "submissionMode": "K8sJobMode",
        "submitterConfig": {"backoffLimit": SUBMITTER_RETRIES},
        "metadata": run,
        "backoffLimit": 0,
        "preRunningDeadlineSeconds": deadlines.pre_running_s,
        "activeDeadlineSeconds": deadlines.active_s,
        "shutdownAfterJobFinishes": True,
    }
    if order.bundle is not None:
        spec["runtimeEnvYAML"] = f"working_dir: {pods.BUNDLE_FOLDER}\n"
    return spec | {
        "submitterPodTemplate": pods.submitter(order),
        "rayClusterSpec": cluster_spec(order, training_shapes(order)),
    }
