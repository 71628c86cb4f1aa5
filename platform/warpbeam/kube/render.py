"""From an order to the text that is reviewed and applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from warpbeam.errors import PlatformError
from warpbeam.job import Range
from warpbeam.kube.admission import tenancy
from warpbeam.kube.cluster import ray_cluster
from warpbeam.kube.gang import Gang, gang_of
from warpbeam.kube.job import ray_cron_job, ray_job
from warpbeam.kube.network_policy import network_policy
from warpbeam.kube.operator_rules import check, cluster_of
from warpbeam.kube.order import Kind, Order
from warpbeam.kube.rbac import driver_rights
from warpbeam.kube.service import ray_service
from warpbeam.kube.yaml_text import explained
from warpbeam.pool_kubernetes import DIGEST_PLACEHOLDER

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """What a file holds.

    Args:
        notes: what a person should know besides.
    """

    documents: tuple[Manifest, ...]
    notes: tuple[str, ...]
    header: tuple[str, ...]

    @property
    def text(self) -> str:
        """As YAML with comments; the same order gives the same bytes."""
        return explained(self.documents, self.header)


def render(order: Order) -> Rendered:
    """All documents of this kind, in the order in which they are to be applied.

    Raises:
        PlatformError: the pool does not offer it, or the operator would not take it.
    """
    documents = tuple(_documents(order))
    check(documents)
    return Rendered(documents, tuple(_notes(order)), tuple(_header(order, documents)))


def refuse_placeholders(order: Order) -> None:
    """Raise PlatformError while the pool's image is one that nobody has built."""
    if order.image.ref.endswith(DIGEST_PLACEHOLDER):
        raise PlatformError(
            f"the image of pool `{order.pool.name}` is a placeholder: {order.image.ref}",
            why="a digest of zeros is no image",
            fix="push your image and write its digest under `image.ref` (`crane digest IMAGE` prints it)",
            reason="placeholder_image",
        )


def _documents(order: Order) -> Iterator[Manifest]:
    if order.kind is Kind.TENANCY:
        yield from tenancy(order)
        return
    if order.kind is Kind.RAYJOB:
        yield from driver_rights(order)
    if (policy := network_policy(order)) is not None:
        yield policy
    yield _ray_object(order, gang_of(order))


def _ray_object(order: Order, gang: Gang) -> Manifest:
    match order.kind:
        case Kind.RAYCLUSTER:
            return ray_cluster(order, gang)
        case Kind.RAYSERVICE:
            return ray_service(order, gang)
        case Kind.RAYCRONJOB:
            return ray_cron_job(order, gang)
    return ray_job(order, gang)


def _notes(order: Order) -> Iterator[str]:
    kubernetes, asked = order.kubernetes, order.job.resources.accelerators
    if order.kind is Kind.TENANCY:
        if kubernetes.fabric.needs_privileged:
            yield f"the fabric needs privilege: policies stand in for Pod Security in {order.team.namespace}"
        return
    if kubernetes.network is None:
        yield "the pool has no `kubernetes.network`: no NetworkPolicy is rendered, other tenants reach the pods"
    if isinstance(asked, Range) and not order.rigid and not order.may_scale:
        why = "Kueue without elastic_jobs_gate" if kubernetes.num_of_hosts == 1 else "a slice has all of its hosts"
        yield f"{why}: the elastic job is rendered at {order.plan.world_size} accelerators, and stays there"
    if order.image.ref.endswith(DIGEST_PLACEHOLDER):
        yield "the image's digest is a placeholder: no pod can start"


def _header(order: Order, documents: tuple[Manifest, ...]) -> Iterator[str]:
    plan = order.plan
    yield f"Rendered by `warpbeam render` for run {order.job.team}/{order.job.name} on pool {order.pool.name}: change"
    yield "those files and render again. Apply: kubectl apply --server-side -f FILE"
    if order.kind is Kind.TENANCY:
        return
    if order.kind is not Kind.RAYSERVICE:
        yield f"Plan: {plan.world_size} x {plan.accelerator}, {plan.strategy}, micro-batch {plan.micro_batch}"
    total = asked_for(documents)
    yield f"Asks for at its start: {', '.join(f'{name} {_amount(amount)}' for name, amount in sorted(total.items()))}"


def asked_for(documents: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """What the pods of all Ray objects request together, head and submitter included: the quota that is needed.
    Memory in bytes."""
    total: Counter[str] = Counter()
    for document in documents:
        spec = document.get("spec", {})
        job = spec.get("jobTemplate", spec)
        if template := job.get("submitterPodTemplate"):
            _add(total, template, 1)
        cluster = cluster_of(document)[1]
        if not cluster:
            continue
        _add(total, cluster["headGroupSpec"]["template"], 1)
        if cluster.get("enableInTreeAutoscaling"):
            _add_requests(total, cluster["autoscalerOptions"]["resources"]["requests"], 1)
        for group in cluster["workerGroupSpecs"]:
            _add(total, group["template"], group["replicas"] * group.get("numOfHosts", 1))
    return dict(total)


def _add(total: Counter[str], template: Mapping[str, Any], pods: int) -> None:
    for container in template["spec"]["containers"]:
        _add_requests(total, container["resources"]["requests"], pods)


def _add_requests(total: Counter[str], requests: Mapping[str, str], pods: int) -> None:
    for name, amount in requests.items():
        total[name] += int(amount.removesuffix("Gi")) * (1 << 30 if amount.endswith("Gi") else 1) * pods


def _amount(value: float) -> str:
    return f"{value / (1 << 30):g}Gi" if value >= 1 << 30 else f"{value:g}"
