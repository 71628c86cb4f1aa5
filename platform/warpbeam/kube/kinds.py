"""The kinds of objects that Warpbeam asks an API server for: where each lies in its REST paths.

A fixed table instead of discovery: no request before the first, no rights beside those that are used, and a kind that
the server does not know is found by the one question that needed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote


@dataclass(frozen=True)
class Resource:
    """One kind in one version.

    Args:
        group: of the API; empty for the core.
        namespaced: whether its objects lie in namespaces.
    """

    kind: str
    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def full_name(self) -> str:
        """As kubectl and Roles write it: `rayjobs.ray.io`, `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """Of a collection, an object or its subresource; without a namespace: of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{quote(namespace, safe='')}" if self.namespaced and namespace else ""
        return f"{root}{inside}/{self.plural}" + "".join(f"/{quote(part, safe='')}" for part in (name, sub) if part)


_RBAC: Final = ("rbac.authorization.k8s.io", "v1")
_ADMISSION: Final = ("admissionregistration.k8s.io", "v1")
_ALL: Final = (
    Resource("RayJob", "ray.io", "v1", "rayjobs"),
    Resource("RayCluster", "ray.io", "v1", "rayclusters"),
    Resource("RayService", "ray.io", "v1", "rayservices"),
    Resource("RayCronJob", "ray.io", "v1", "raycronjobs"),
    Resource("Pod", "", "v1", "pods"),
    Resource("Event", "", "v1", "events"),
    Resource("ConfigMap", "", "v1", "configmaps"),
    Resource("ServiceAccount", "", "v1", "serviceaccounts"),
    Resource("ResourceQuota", "", "v1", "resourcequotas"),
    Resource("Namespace", "", "v1", "namespaces", namespaced=False),
    Resource("Node", "", "v1", "nodes", namespaced=False),
    Resource("Deployment", "apps", "v1", "deployments"),
    Resource("Lease", "coordination.k8s.io", "v1", "leases"),
    Resource("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
    Resource("Role", *_RBAC, "roles"),
    Resource("RoleBinding", *_RBAC, "rolebindings"),
    Resource("ClusterRole", *_RBAC, "clusterroles", namespaced=False),
    Resource("ClusterRoleBinding", *_RBAC, "clusterrolebindings", namespaced=False),
    Resource("ValidatingAdmissionPolicy", *_ADMISSION, "validatingadmissionpolicies", namespaced=False),
    Resource("ValidatingAdmissionPolicyBinding", *_ADMISSION, "validatingadmissionpolicybindings", namespaced=False),
    Resource("CustomResourceDefinition", "apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False),
    Resource("Workload", "kueue.x-k8s.io", "v1beta2", "workloads"),
)
KINDS: Final[Mapping[str, Resource]] = {resource.kind: resource for resource in _ALL}
"""By kind."""
