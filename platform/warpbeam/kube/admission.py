"""A team's namespace: what the API server itself enforces there, whoever writes a manifest by hand.

The policies look at pods, because everything that computes becomes one, and at KubeRay's objects for their queue.
"""

from __future__ import annotations

import json
from typing import Any

from warpbeam.kube import names
from warpbeam.kube.order import Order
from warpbeam.kube.pods import POOL_FILE
from warpbeam.kube.rbac import submitter_rights
from warpbeam.kube.yaml_text import plain_yaml

Manifest = dict[str, Any]

_CONTAINERS = "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
_LIMITS = "has(c.resources) && has(c.resources.limits) && 'cpu' in c.resources.limits && 'memory' in c.resources.limits"
# Where the fabric wants a privileged namespace, Pod Security enforces nothing: what it would, less IPC_LOCK.
_WITHOUT_POD_SECURITY = (
    (
        "!has(object.spec.volumes) || object.spec.volumes.all(v, !has(v.hostPath))",
        "no folder of a host may be mounted here",
    ),
    (
        "!(object.spec.?hostNetwork.orValue(false) || object.spec.?hostPID.orValue(false)"
        " || object.spec.?hostIPC.orValue(false))",
        "no pod here shares its host's network, processes or memory",
    ),
    (
        f"({_CONTAINERS}).all(c, c.?securityContext.?allowPrivilegeEscalation.orValue(true) == false"
        " && c.?securityContext.?privileged.orValue(false) == false)",
        "every container must refuse to become privileged",
    ),
    (
        f"({_CONTAINERS}).all(c, c.?securityContext.?capabilities.?add.orValue([]).all(a, a == 'IPC_LOCK'))",
        "IPC_LOCK is the only capability that may be added here",
    ),
)
_QUEUE_LABELS = {
    "kueue": "kueue.x-k8s.io/queue-name",
    "volcano": "volcano.sh/queue-name",
    "yunikorn": "yunikorn.apache.org/queue",
}


def tenancy(order: Order) -> list[Manifest]:
    """Everything that the platform team applies once for a team, before its first run."""
    found = [_namespace(order), _service_account(order), _pool_config(order), _deny_all(order)]
    found += submitter_rights(order)
    if order.team.quota is not None:
        found.append(_quota(order))
    found += _policy(order, "pods", ["", "v1", ["pods"]], _pod_rules(order))
    label = _QUEUE_LABELS.get(order.kubernetes.gang)
    if label is not None:
        found += _policy(
            order, "queue", ["ray.io", "v1", ["rayjobs", "rayclusters", "rayservices"]], [_queue(order, label)]
        )
    return found


def _namespace(order: Order) -> Manifest:
    level = "privileged" if order.kubernetes.fabric.needs_privileged else "restricted"
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "audit", "warn")}
    metadata = {"name": order.team.namespace, "labels": {names.TEAM: order.job.team, **labels}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _service_account(order: Order) -> Manifest:
    metadata = _metadata(order, order.team.service_account)
    if order.team.service_account_annotations:
        metadata["annotations"] = dict(order.team.service_account_annotations)
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }


def _pool_config(order: Order) -> Manifest:
    """Pods read this copy, not the submitter's file. As it was written: defaults are the reader's."""
    content = order.pool.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(order, names.pool_config_name(order.pool.name)),
        "data": {POOL_FILE: plain_yaml(content)},
    }


def _deny_all(order: Order) -> Manifest:
    """A run's own policy opens what it needs; a pod without one reaches nobody."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(order, "warpbeam-deny-all"),
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
    }


def _quota(order: Order) -> Manifest:
    quota = order.team.quota
    assert quota is not None
    hard = {
        "requests.cpu": str(quota.cpus),
        "limits.cpu": str(quota.cpus),
        "requests.memory": f"{quota.memory_gib}Gi",
        "limits.memory": f"{quota.memory_gib}Gi",
        "pods": str(quota.pods),
    }
    if order.kubernetes.accelerator_resource:
        hard[f"requests.{order.kubernetes.accelerator_resource}"] = str(quota.accelerators)
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": _metadata(order, "warpbeam"),
        "spec": {"hard": hard},
    }


def _pod_rules(order: Order) -> list[Manifest]:
    """CEL over a pod; texts are quoted as JSON, which CEL reads."""
    image, account = json.dumps(order.image.ref), json.dumps(order.team.service_account)
    every = f"({_CONTAINERS}).all(c, %s)"
    return [
        _rule(every % f"c.image == {image}", f"only the pool's image may run here: {order.image.ref}"),
        _rule(
            "!has(object.spec.ephemeralContainers) || object.spec.ephemeralContainers.size() == 0",
            "no ephemeral containers here: they would see the team's secrets",
        ),
        _rule(
            f"object.spec.serviceAccountName == {account}",
            f"pods here run as service account {order.team.service_account}",
        ),
        _rule(every % _LIMITS, "every container must state its limits of cpu and memory"),
        *(_rule(*rule) for rule in _WITHOUT_POD_SECURITY if order.kubernetes.fabric.needs_privileged),
    ]


def _queue(order: Order, label: str) -> Manifest:
    queue = order.kubernetes.team_queue(order.team)
    held = "has(object.metadata.labels) && {0} in object.metadata.labels && object.metadata.labels[{0}] == {1}"
    return _rule(
        held.format(json.dumps(label), json.dumps(queue)),
        f"the label {label} must be {queue}: whatever computes here goes through the team's queue",
    )


def _rule(expression: str, message: str) -> Manifest:
    return {"expression": expression, "message": message}


def _policy(order: Order, what: str, matched: list[Any], rules: list[Manifest]) -> list[Manifest]:
    group, version, resources = matched
    name = f"warpbeam-{order.team.namespace}-{what}"
    wanted = resources if what != "pods" else [*resources, "pods/ephemeralcontainers"]
    match = {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": ["CREATE", "UPDATE"],
        "resources": wanted,
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": order.team.namespace}}
    api = "admissionregistration.k8s.io/v1"
    return [
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"namespaceSelector": selector, "resourceRules": [match]},
                "validations": rules,
            },
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


def _metadata(order: Order, name: str) -> Manifest:
    return {"name": name, "namespace": order.team.namespace, "labels": {names.TEAM: order.job.team}}
