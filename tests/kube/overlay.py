"""What differs from a real cluster: pods use this machine's Python and this repository's environment.

An image cannot be built here, so what would be in it is mounted read-only, by a policy of the API server: what users
apply stays as it is, and `warpbeam submit --kube` is the same command as elsewhere. A namespace that takes such pods
cannot enforce Pod Security. And all nodes share the machine's few cores: pods reserve a small part of what they may
use.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.kube.lab.api import Api, Refused
from tests.kube.lab.layout import REPOSITORY
from tests.kube.lab.sandbox import wait_for

Object = dict[str, Any]
RESERVED_CPU = "50m"
NAME = "this-python.lab"
LABEL = "lab/this-python"
"""Of namespaces whose pods get it."""
PROBED = "lab-probe"
_GROUP = "admissionregistration.k8s.io/v1"


def mounts() -> dict[str, Path]:
    """Name of the volume -> folder of the machine, at the same path in a pod."""
    found = {"host-usr": Path("/usr"), "host-alternatives": Path("/etc/alternatives"), "host-repository": REPOSITORY}
    interpreter = Path(sys.base_prefix).resolve()
    if not interpreter.is_relative_to("/usr"):
        found["host-python"] = interpreter
    return found


def install(api: Api) -> None:
    """Let the API server change every pod of a namespace with LABEL as it is created."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": _change("containers")}},
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": _change("initContainers")}},
        ],
    }
    api.apply({"apiVersion": _GROUP, "kind": "MutatingAdmissionPolicy", "metadata": {"name": NAME}, "spec": spec})
    there = {"namespaceSelector": {"matchLabels": {LABEL: "yes"}}}
    binding = {"policyName": NAME, "matchResources": there}
    api.apply(
        {"apiVersion": _GROUP, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": NAME}, "spec": binding}
    )
    api.apply(open_namespace({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PROBED}}))
    wait_for("the laboratory's own policy", lambda: _is_in_force(api))


def _change(kind: str) -> str:
    """In CEL: the volumes, and in each container of a kind their mounts and the small reservation."""
    volumes = ", ".join(
        f'Object.spec.volumes{{name: "{name}", hostPath: Object.spec.volumes.hostPath{{path: "{path}"}}}}'
        for name, path in mounts().items()
    )
    mounted = ", ".join(
        f'Object.spec.{kind}.volumeMounts{{name: "{name}", mountPath: "{path}", readOnly: true}}'
        for name, path in mounts().items()
    )
    reserved = f'Object.spec.{kind}.resources{{requests: {{"cpu": "{RESERVED_CPU}"}}}}'
    one = f"Object.spec.{kind}{{name: c.name, resources: {reserved}, volumeMounts: [{mounted}]}}"
    there = f"has(object.spec.{kind}) ? object.spec.{kind}.map(c, {one}) : []"
    return f"Object{{spec: Object.spec{{volumes: [{volumes}], {kind}: {there}}}}}"


def opened(documents: Sequence[Object]) -> list[Object]:
    """A team's documents, its namespace open for such pods: it enforces no Pod Security."""
    return [open_namespace(each) if each["kind"] == "Namespace" else each for each in documents]


def open_namespace(document: Object) -> Object:
    """A namespace whose pods get this Python."""
    found = copy.deepcopy(document)
    labels = found["metadata"].setdefault("labels", {})
    for label in labels:
        if label.startswith("pod-security.kubernetes.io/"):
            labels[label] = "privileged"
    labels[LABEL] = "yes"
    return found


def _is_in_force(api: Api) -> bool:
    """A policy is in force some moments after it was written."""
    spec = {"containers": [{"name": "a", "image": "nobody/knows:1"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": PROBED}, "spec": spec}
    try:
        made = api.apply(pod, dry_run=True)
    except Refused:  # the namespace is too new to have its service account
        return False
    return any(each["name"] in mounts() for each in made["spec"]["volumes"])


def pod_templates(value: Any) -> Iterator[Object]:
    """Every pod template in an object, at any depth."""
    if isinstance(value, dict):
        if "containers" in (value.get("spec") or {}):
            yield value
        for inner in value.values():
            yield from pod_templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_templates(inner)


def pod_specs(document: Object) -> Iterator[Object]:
    """Their specs."""
    for template in pod_templates(document):
        yield template["spec"]
