"""Kubernetes' Pod Security level `restricted`, as far as it can be read from a pod's spec.

Written from https://kubernetes.io/docs/concepts/security/pod-security-standards/ ; the API server has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def violations(spec: dict[str, Any]) -> Iterator[str]:
    """What the admission would say about a pod."""
    pod = spec.get("securityContext", {})
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield key
    for volume in spec.get("volumes", []):
        for kind in set(volume) - {"name"}:
            if kind not in ALLOWED_VOLUMES:
                yield f"volume {kind}"
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        own = container.get("securityContext", {})
        name = container["name"]
        if own.get("privileged"):
            yield f"{name}: privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: allowPrivilegeEscalation"
        if "ALL" not in own.get("capabilities", {}).get("drop", []):
            yield f"{name}: capabilities"
        if set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"}:
            yield f"{name}: added capabilities"
        if (own.get("runAsNonRoot") or pod.get("runAsNonRoot")) is not True:
            yield f"{name}: runAsNonRoot"
        if own.get("runAsUser", pod.get("runAsUser")) == 0:
            yield f"{name}: root"
        profile = own.get("seccompProfile", pod.get("seccompProfile", {}))
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name}: seccompProfile"
        if any("hostPort" in port for port in container.get("ports", [])):
            yield f"{name}: hostPort"
