"""Who may ask what of Kubernetes: a run's driver and whoever submits for a team. Nothing more than each uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from warpbeam.kube.order import Order

Manifest = dict[str, Any]

SUBMITTER: Final = "warpbeam-submitter"
VERSION: Final = "rbac.authorization.k8s.io/v1"
_GROUP: Final = "rbac.authorization.k8s.io"


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
    return [_role(metadata, [rule]), _binding(metadata, [account])]


def submitter_rules(*, kueue: bool) -> list[Manifest]:
    """What `submit --kube`, `status`, `stop` and `render --check` ask for in a team's namespace.

    A run's own Role gives its driver rights that the submitter must have too, or the API server would not take it.
    """
    rules = [
        rule("ray.io", ["rayjobs"], "get", "list", "watch", "create", "patch", "delete"),
        rule("ray.io", ["rayclusters"], "list", "watch"),
        rule("", ["pods"], "get", "list", "watch"),
        rule("", ["pods/log"], "get"),
        rule("", ["events"], "list", "watch"),
        rule(_GROUP, ["roles", "rolebindings"], "get", "create", "patch"),
        rule("networking.k8s.io", ["networkpolicies"], "get", "create", "patch"),
    ]
    return [*rules, rule("kueue.x-k8s.io", ["workloads"], "list", "watch")] if kueue else rules


def submitter_rights(order: Order) -> list[Manifest]:
    """The Role of whoever submits for the team, bound to the pool's groups where it names some."""
    metadata = {"name": SUBMITTER, "namespace": order.team.namespace}
    groups = [{"apiGroup": _GROUP, "kind": "Group", "name": name} for name in order.team.submitters]
    role = _role(metadata, submitter_rules(kueue=order.kubernetes.gang == "kueue"))
    return [role, _binding(metadata, groups)] if groups else [role]


def rule(group: str, resources: Sequence[str], *verbs: str) -> Manifest:
    """One rule of a Role."""
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


def _role(metadata: Manifest, rules: list[Manifest]) -> Manifest:
    return {"apiVersion": VERSION, "kind": "Role", "metadata": metadata, "rules": rules}


def _binding(metadata: Manifest, subjects: list[Manifest]) -> Manifest:
    role = {"apiGroup": _GROUP, "kind": "Role", "name": metadata["name"]}
    return {"apiVersion": VERSION, "kind": "RoleBinding", "metadata": metadata, "subjects": subjects, "roleRef": role}
