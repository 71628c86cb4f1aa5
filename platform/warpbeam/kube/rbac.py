"""What a run may ask of Kubernetes: to read and change its own RayJob, nothing else."""

from __future__ import annotations

from typing import Any

from warpbeam.kube.order import Order

Manifest = dict[str, Any]


def driver_rights(order: Order) -> list[Manifest]:
    """A Role for one RayJob by its name, bound to the team's service account."""
    metadata = {"name": f"{order.name}-driver", "namespace": order.team.namespace, "labels": dict(order.labels)}
    rule = {
        "apiGroups": ["ray.io"],
        "resources": ["rayjobs"],
        "resourceNames": [order.name],
        "verbs": ["get", "patch"],
    }
    account = {
        "kind": "ServiceAccount",
        "name": order.team.service_account,
        "namespace": order.team.namespace,
    }
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": metadata["name"]}
    version = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule]},
        {"apiVersion": version, "kind": "RoleBinding", "metadata": metadata, "subjects": [account], "roleRef": role},
    ]
