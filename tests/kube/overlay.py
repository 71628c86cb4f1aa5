"""What differs from a real cluster: pods use this machine's Python and this repository's environment.

An image cannot be built here, so what would be in it is mounted read-only. What users get has no such mount; a
namespace that takes it cannot enforce Pod Security. And both nodes share the machine's few cores: pods reserve a small
part of what they may use.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kube.lab.layout import REPOSITORY

Object = dict[str, Any]
RESERVED_CPU = "50m"


def mounts() -> dict[str, Path]:
    """Name of the volume -> folder of the machine, at the same path in a pod."""
    found = {"host-usr": Path("/usr"), "host-alternatives": Path("/etc/alternatives"), "host-repository": REPOSITORY}
    interpreter = Path(sys.base_prefix).resolve()
    if not interpreter.is_relative_to("/usr"):
        found["host-python"] = interpreter
    return found


def with_this_python(document: Object) -> Object:
    """The same object, its pods over the machine's programs."""
    found = copy.deepcopy(document)
    for spec in pod_specs(found):
        spec.setdefault("volumes", []).extend(
            {"name": name, "hostPath": {"path": str(path)}} for name, path in mounts().items()
        )
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            container["resources"]["requests"]["cpu"] = RESERVED_CPU
            container.setdefault("volumeMounts", []).extend(
                {"name": name, "mountPath": str(path), "readOnly": True} for name, path in mounts().items()
            )
    return found


def open_namespace(document: Object) -> Object:
    """A namespace that takes such pods: it enforces nothing."""
    found = copy.deepcopy(document)
    for label in found["metadata"]["labels"]:
        if label.startswith("pod-security.kubernetes.io/"):
            found["metadata"]["labels"][label] = "privileged"
    return found


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
