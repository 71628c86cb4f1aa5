"""The RayService: an exported model behind the OpenAI API, one replica a pod, on the image's own application."""

from __future__ import annotations

from typing import Any, Final

from warpbeam.errors import PlatformError
from warpbeam.kube import pods
from warpbeam.kube.cluster import API_VERSION, cluster_spec, metadata
from warpbeam.kube.gang import Gang
from warpbeam.kube.order import Order
from warpbeam.kube.resources import Shape, pod_size
from warpbeam.kube.yaml_text import plain_yaml
from warpbeam.pool_kubernetes import Serve

Manifest = dict[str, Any]

SERVE_PORT: Final = 8000
TOKEN_ENV: Final = "WARPBEAM_SERVE_TOKEN"
"""Where serve/guard.py looks for it (a test compares them; that module is not imported here)."""


def ray_service(order: Order, gang: Gang) -> Manifest:
    """A cluster that serves one model.

    Raises:
        PlatformError: the pool has no `serve:` section.
    """
    serve = _offered(order)
    size = pod_size(order, max(1, serve.accelerators_per_replica))
    cluster = cluster_spec(order, [Shape("serve", size, serve.replicas, serve.replicas, serve.replicas)])
    if serve.redis is not None:
        cluster["gcsFaultToleranceOptions"] = _fault_tolerance(serve)
    port = {"name": "serve", "containerPort": SERVE_PORT}
    # Without it there KubeRay makes no service for clients, although none of them is sent to the head.
    cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"].append(port)
    for group in cluster["workerGroupSpecs"]:
        container = group["template"]["spec"]["containers"][0]
        container["env"].append(pods.from_secret(TOKEN_ENV, serve.token))
        container["ports"] = [dict(port)]
    return {
        "apiVersion": API_VERSION,
        "kind": "RayService",
        "metadata": metadata(order, gang),
        "spec": {
            "serveConfigV2": plain_yaml(_application(order, serve, size.cpus)),
            "excludeHeadPodFromServeSvc": True,
            "rayClusterConfig": cluster,
        },
    }


def _offered(order: Order) -> Serve:
    if order.kubernetes.serve is None:
        raise PlatformError(
            f"the pool `{order.pool.name}` serves no models",
            fix="in the pool file, under kubernetes: `serve: {token: {name: SECRET, key: KEY}}`",
            reason="no_serving",
        )
    return order.kubernetes.serve


def _application(order: Order, serve: Serve, cpus: int) -> Manifest:
    arguments = {
        "model": order.model,
        "name": order.job.name,
        "storage": order.pool.storage_config().to_dict(),
        "require_token": True,
        "replicas": serve.replicas,
        "cpus_per_replica": cpus,
        "gpus_per_replica": serve.accelerators_per_replica,
    }
    application = {
        "name": order.name,
        "import_path": "warpbeam.serve.app:build_app",
        "route_prefix": "/",
        "args": arguments,
    }
    return {"applications": [application]}


def _fault_tolerance(serve: Serve) -> Manifest:
    assert serve.redis is not None
    options: Manifest = {"redisAddress": serve.redis.address}
    if serve.redis.password is not None:
        source = {"name": serve.redis.password.name, "key": serve.redis.password.key}
        options["redisPassword"] = {"valueFrom": {"secretKeyRef": source}}
    return options
