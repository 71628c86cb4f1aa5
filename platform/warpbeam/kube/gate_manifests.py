"""The gate as a Deployment with the rights that it uses, and nothing more."""

from __future__ import annotations

from typing import Any, Final

from warpbeam.kube.gate_loop import LEASE
from warpbeam.kube.rbac import VERSION, rule
from warpbeam.kube.resources import requirements
from warpbeam.pool import Image

Manifest = dict[str, Any]

NAME: Final = "warpbeam-gate"
NAMESPACE: Final = "warpbeam-system"
REPLICAS: Final = 2
"""One holds the Lease; the other is half a minute behind it."""
_GROUP: Final = "rbac.authorization.k8s.io"


def gate_manifests(image: Image, *, namespace: str = NAMESPACE, run_as_user: int = 1000) -> list[Manifest]:
    """All documents, in the order in which they are to be applied."""
    here = {"name": NAME, "namespace": namespace}
    level = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": level}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here, "automountServiceAccountToken": False},
        {"apiVersion": VERSION, "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": cluster_rules()},
        {
            "apiVersion": VERSION,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "subjects": [account],
            "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": NAME},
        },
        {"apiVersion": VERSION, "kind": "Role", "metadata": here, "rules": lease_rules()},
        {
            "apiVersion": VERSION,
            "kind": "RoleBinding",
            "metadata": here,
            "subjects": [account],
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": NAME},
        },
        _deployment(image, here, run_as_user),
    ]


def cluster_rules() -> list[Manifest]:
    """To see what is free, and to let runs in."""
    return [
        rule("", ["nodes", "pods", "resourcequotas"], "list"),
        rule("ray.io", ["rayjobs"], "list", "patch"),
    ]


def lease_rules() -> list[Manifest]:
    """A name cannot be asked for before it is there, so creating is not bound to one."""
    return [
        rule("coordination.k8s.io", ["leases"], "create"),
        rule("coordination.k8s.io", ["leases"], "get", "patch") | {"resourceNames": [LEASE]},
    ]


def _deployment(image: Image, metadata: Manifest, run_as_user: int) -> Manifest:
    labels = {"app.kubernetes.io/name": NAME}
    container = {
        "name": "gate",
        "image": image.ref,
        "command": ["warpbeam", "gate", "--namespace", metadata["namespace"]],
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "resources": requirements({"cpu": "200m", "memory": "512Mi"}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    spec: Manifest = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": run_as_user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if image.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in image.pull_secrets]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata, "labels": labels},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
