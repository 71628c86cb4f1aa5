"""Pod templates: the Ray head, workers, and the pod that sends the job to the head.

What they share is here once: Pod Security `restricted`, the platform's copy of the pool file, credentials by name, the
time for an emergency save. Nothing of a host is mounted.
"""

from __future__ import annotations

from typing import Any, Final

from warpbeam.kube import names
from warpbeam.kube.order import Kind, Order
from warpbeam.kube.resources import (
    SUBMITTER_CPUS,
    SUBMITTER_MEMORY_GIB,
    PodSize,
    head_size,
    quantities,
    requirements,
)
from warpbeam.pool_kubernetes import Placement, SecretKey, Toleration

Manifest = dict[str, Any]

POOL_FOLDER: Final = "/etc/warpbeam"
POOL_FILE: Final = "pool.yaml"
BUNDLE_FOLDER: Final = "/bundle"
BUNDLE_FETCHER: Final = "bundle"
"""The submitter's first container."""
RANKS: Final = "ranks"
METRICS_PORT: Final = 8080
STOP_MARGIN_S: Final = 30
"""Of the grace, for what comes after the save: Ray's own end."""
_AWS_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def head(order: Order) -> Manifest:
    """The pod with GCS, dashboard and driver: no accelerator, no tasks."""
    template = _ray_pod(order, "ray-head", head_size(order), order.kubernetes.head, role="head")
    spec = template["spec"]
    # A head that restarts in place has forgotten the job and would be sent it again: a lost head is a new cluster.
    spec["restartPolicy"] = "Never"
    spec["automountServiceAccountToken"] = True  # the driver's own RayJob, and Ray's autoscaler
    if order.kind is Kind.RAYJOB:
        spec["containers"][0]["env"].append({"name": names.RAY_JOB_ENV, "value": order.name})
    spec["containers"][0]["ports"] = [
        {"name": "gcs-server", "containerPort": 6379},
        {"name": "dashboard", "containerPort": 8265},
        {"name": "client", "containerPort": 10001},
        {"name": "metrics", "containerPort": METRICS_PORT},
    ]
    return template


def worker(order: Order, size: PodSize, placement: Placement | None = None) -> Manifest:
    """A pod of ranks, or of a CPU group where a placement of its own is given."""
    kubernetes = order.kubernetes
    of_pool = Placement(node_selector=kubernetes.node_selector, tolerations=kubernetes.tolerations)
    template = _ray_pod(order, "ray-worker", size, placement or of_pool, role="worker")
    template["spec"]["automountServiceAccountToken"] = False
    # KubeRay lets a worker wait for its head in a shell, which as process 1 would be deaf to SIGTERM: a gang that is
    # given up would hold its accelerators for the whole grace.
    template["spec"]["shareProcessNamespace"] = True
    if placement is None:
        template["metadata"]["labels"][names.ROLE] = RANKS
        _add_fabric(order, template)
        _add_topology(order, template)
    return template


def submitter(order: Order) -> Manifest:
    """The pod that fetches the bundle and runs `ray job submit`; KubeRay fills in its command."""
    asked = {"cpu": str(SUBMITTER_CPUS), "memory": f"{SUBMITTER_MEMORY_GIB}Gi"}
    mount = {"name": "bundle", "mountPath": BUNDLE_FOLDER}
    container: Manifest = {
        "name": "ray-job-submitter",
        "image": order.image.ref,
        "resources": requirements(asked),
        "securityContext": _container_security(),
    }
    spec = _pod_spec(order, order.kubernetes.head) | {"restartPolicy": "Never", "automountServiceAccountToken": False}
    spec["volumes"] = [_pool_volume(order)]
    if order.bundle is not None:
        container["volumeMounts"] = [mount]
        spec["volumes"].append({"name": "bundle", "emptyDir": {"sizeLimit": "2Gi"}})
        spec["initContainers"] = [_fetch(order, container, mount)]
    spec["containers"] = [container]
    return {"metadata": {"labels": dict(order.labels)}, "spec": spec}


def _fetch(order: Order, container: Manifest, mount: Manifest) -> Manifest:
    assert order.bundle is not None
    command = ["python", "-m", "warpbeam.launch.fetch_bundle", order.bundle.uri]
    return {
        **container,
        "name": BUNDLE_FETCHER,
        "command": [*command, "--digest", order.bundle.digest, "--into", BUNDLE_FOLDER],
        "env": [*_pool_env(), *_credentials(order)],
        "terminationMessagePolicy": "FallbackToLogsOnError",  # why it failed is then in the pod's status
        "volumeMounts": [mount, _pool_mount()],
    }


def _ray_pod(order: Order, container_name: str, size: PodSize, placement: Placement, *, role: str) -> Manifest:
    kubernetes = order.kubernetes
    metadata: Manifest = {"labels": dict(order.labels)}
    if kubernetes.prometheus:
        metadata["annotations"] = {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(METRICS_PORT),
            "prometheus.io/path": "/metrics",
        }
    container: Manifest = {
        "name": container_name,
        "image": order.image.ref,
        "resources": requirements(quantities(order, size)),
        "env": _environment(order),
        "securityContext": _container_security(),
        "lifecycle": {"preStop": {"exec": {"command": _pre_stop(order, role)}}},
        "volumeMounts": _mounts(order),
    }
    spec = _pod_spec(order, placement)
    spec["terminationGracePeriodSeconds"] = kubernetes.deadlines.save_grace_s + STOP_MARGIN_S
    spec["containers"] = [container]
    spec["volumes"] = _volumes(order, size)
    return {"metadata": metadata, "spec": spec}


def _pod_spec(order: Order, placement: Placement) -> Manifest:
    """What every pod of the run has in common."""
    kubernetes = order.kubernetes
    spec: Manifest = {"serviceAccountName": order.team.service_account}
    if kubernetes.priority_class:
        spec["priorityClassName"] = kubernetes.priority_class
    if order.image.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in order.image.pull_secrets]
    if placement.node_selector:
        spec["nodeSelector"] = dict(placement.node_selector)
    spec["tolerations"] = [*map(_toleration, placement.tolerations), *_lost_node(kubernetes.deadlines.lost_node_s)]
    user = kubernetes.run_as_user
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return spec


def _container_security(*capabilities: str) -> Manifest:
    security: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    if capabilities:
        security["capabilities"]["add"] = list(capabilities)
    return security


def autoscaler_security() -> Manifest:
    """KubeRay puts Ray's autoscaler beside the head; `restricted` looks at each container."""
    return _container_security()


def _pre_stop(order: Order, role: str) -> list[str]:
    grace_s = order.kubernetes.deadlines.save_grace_s
    return ["python", "-m", "warpbeam.launch.pre_stop", role, "--grace-s", str(grace_s)]


def _toleration(taint: Toleration) -> Manifest:
    found: Manifest = {"key": taint.key, "operator": taint.operator}
    found |= {"value": taint.value} if taint.value is not None else {}
    found |= {"effect": taint.effect} if taint.effect else {}
    return found | ({"tolerationSeconds": taint.toleration_seconds} if taint.toleration_seconds is not None else {})


def _lost_node(seconds: int) -> list[Manifest]:
    """Kubernetes would wait five minutes before it gives up a pod on a node that has gone."""
    keys = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    return [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds} for key in keys]


# ---- environment and volumes


def _environment(order: Order) -> list[Manifest]:
    plain = {"RAY_USAGE_STATS_ENABLED": "0", **order.pool.env, **order.kubernetes.fabric.env}
    plain_env = [{"name": name, "value": value} for name, value in sorted(plain.items())]
    return [*_pool_env(), *plain_env, *_credentials(order), *_secret_env(order)]


def _pool_env() -> list[Manifest]:
    return [{"name": "WARPBEAM_POOL", "value": f"{POOL_FOLDER}/{POOL_FILE}"}]


def _credentials(order: Order) -> list[Manifest]:
    secret = order.kubernetes.credentials.secret
    if secret is None:
        return []
    return [from_secret(name, SecretKey(name=secret, key=name)) for name in _AWS_KEYS]


def from_secret(variable: str, source: SecretKey) -> Manifest:
    """An environment variable whose value is not in the manifest."""
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": source.name, "key": source.key}}}


def _job_secrets(order: Order) -> list[str]:
    return [secret.from_ for secret in order.job.secrets if secret.from_ in order.kubernetes.secrets]


def _secret_env(order: Order) -> list[Manifest]:
    found = []
    for name in _job_secrets(order):
        variable = order.pool.secrets[name].env
        if variable is not None:
            found.append(from_secret(variable, order.kubernetes.secrets[name]))
    return found


def _pool_volume(order: Order) -> Manifest:
    return {"name": "pool", "configMap": {"name": names.pool_config_name(order.pool.name)}}


def _pool_mount() -> Manifest:
    return {"name": "pool", "mountPath": POOL_FOLDER, "readOnly": True}


def _secret_files(order: Order) -> list[tuple[str, str]]:
    """(name of the pool's secret, path) of those that are files."""
    sources = ((name, order.pool.secrets[name].file) for name in _job_secrets(order))
    return [(name, path) for name, path in sources if path is not None]


def _volumes(order: Order, size: PodSize) -> list[Manifest]:
    secrets = [
        {"name": f"secret-{number}", "secret": {"secretName": order.kubernetes.secrets[name].name}}
        for number, (name, _) in enumerate(_secret_files(order))
    ]
    return [
        _pool_volume(order),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{size.shm_gib}Gi"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": f"{size.scratch_gib}Gi"}},
        *secrets,
    ]


def _mounts(order: Order) -> list[Manifest]:
    secrets = [
        {
            "name": f"secret-{number}",
            "mountPath": path,
            "subPath": order.kubernetes.secrets[name].key,
            "readOnly": True,
        }
        for number, (name, path) in enumerate(_secret_files(order))
    ]
    return [
        _pool_mount(),
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "scratch", "mountPath": order.pool.local_disk},
        *secrets,
    ]


# ---- close to each other


def _add_fabric(order: Order, template: Manifest) -> None:
    fabric = order.kubernetes.fabric
    if fabric.networks:
        template["metadata"].setdefault("annotations", {})["k8s.v1.cni.cncf.io/networks"] = ", ".join(fabric.networks)
    if fabric.needs_privileged:
        template["spec"]["containers"][0]["securityContext"] = _container_security("IPC_LOCK")


def _add_topology(order: Order, template: Manifest) -> None:
    """Kueue places whole pod sets itself; elsewhere pods of a run seek each other."""
    topology = order.kubernetes.topology
    if topology is None:
        return
    if order.kubernetes.gang == "kueue":
        word = "required" if topology.required else "preferred"
        annotations = template["metadata"].setdefault("annotations", {})
        annotations[f"kueue.x-k8s.io/podset-{word}-topology"] = topology.key
        return
    ranks = {names.RUN: order.job.name, names.ROLE: RANKS}  # not the head, which is elsewhere
    term = {"labelSelector": {"matchLabels": ranks}, "topologyKey": topology.key}
    if topology.required:
        rule: Manifest = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    else:
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    template["spec"]["affinity"] = {"podAffinity": rule}
