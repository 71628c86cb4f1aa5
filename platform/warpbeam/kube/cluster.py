"""The RayCluster: a head without GPU work, and one worker group for each shape of pod."""

from __future__ import annotations

from typing import Any

from warpbeam.kube import names, pods
from warpbeam.kube.gang import Gang
from warpbeam.kube.order import Order
from warpbeam.kube.resources import PodSize, Shape, head_size, plain_size, requirements, training_shapes
from warpbeam.pool_kubernetes import CpuGroup

Manifest = dict[str, Any]
API_VERSION = "ray.io/v1"


def ray_cluster(order: Order, gang: Gang) -> Manifest:
    """A cluster that stands until it is deleted, for jobs that are sent to it."""
    spec = cluster_spec(order, training_shapes(order))
    if gang.suspend:
        spec = {"suspend": True, **spec}
    return {"apiVersion": API_VERSION, "kind": "RayCluster", "metadata": metadata(order, gang), "spec": spec}


def metadata(order: Order, gang: Gang) -> Manifest:
    """Of every object that KubeRay looks after. The digests tell which job and pool it was made from."""
    annotations = {names.JOB_DIGEST: order.job_digest, names.POOL_DIGEST: order.pool_digest, **gang.annotations}
    if order.bundle is not None:
        annotations[names.BUNDLE] = order.bundle.digest
    return {
        "name": order.name,
        "namespace": order.team.namespace,
        "labels": {**order.labels, **gang.labels},
        "annotations": annotations,
    }


def cluster_spec(order: Order, shapes: list[Shape]) -> Manifest:
    """`spec` of a RayCluster; also inside a RayJob and a RayService."""
    spec: Manifest = {"rayVersion": order.image.versions["ray"]}
    if order.kubernetes.token_auth:
        spec["authOptions"] = {"mode": "token"}
    groups = [_group(order, shape) for shape in shapes]
    if order.autoscaling:
        spec["enableInTreeAutoscaling"] = True
        spec["autoscalerOptions"] = _autoscaler()
        groups += [_cpu_group(order, group) for group in order.kubernetes.cpu_groups]
    spec["headGroupSpec"] = {
        "rayStartParams": {
            "dashboard-host": "0.0.0.0",
            "num-cpus": "0",
            **_object_store(head_size(order)),
        },
        "template": pods.head(order),
    }
    spec["workerGroupSpecs"] = groups
    return spec


def _group(order: Order, shape: Shape) -> Manifest:
    """A group of ranks. A rigid one needs all of its pods, so that the autoscaler has nothing to decide."""
    found: Manifest = {
        "groupName": shape.name,
        "replicas": shape.replicas,
        "minReplicas": shape.least,
        "maxReplicas": shape.most,
    }
    if shape.hosts > 1:
        found["numOfHosts"] = shape.hosts
    return found | {"rayStartParams": _object_store(shape.size), "template": pods.worker(order, shape.size)}


def _cpu_group(order: Order, group: CpuGroup) -> Manifest:
    """Nothing until a task waits for a CPU."""
    size = plain_size(group.cpus, group.memory_gib, order.kubernetes.scratch_gib)
    return {
        "groupName": group.name,
        "replicas": 0,
        "minReplicas": 0,
        "maxReplicas": group.max,
        "idleTimeoutSeconds": group.idle_timeout_s,
        "rayStartParams": _object_store(size),
        "template": pods.worker(order, size, group),
    }


def _autoscaler() -> Manifest:
    return {
        "version": "v2",
        "upscalingMode": "Default",
        "resources": requirements({"cpu": "1", "memory": "1Gi"}),
        "securityContext": pods.autoscaler_security(),
    }


def _object_store(size: PodSize) -> dict[str, str]:
    return {"object-store-memory": str(size.object_store_bytes)}
