"""A team's namespace. Whether an API server refuses by these policies is for a real one to show."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kube.orders import CPU, IMAGE, job, on, order, pool
from warpbeam.kube.order import Kind
from warpbeam.kube.render import render

Manifest = dict[str, Any]


def applied(kubernetes: dict[str, Any] | None = None) -> dict[tuple[str, str], Manifest]:
    documents = render(order(Kind.TENANCY, on=pool(kubernetes))).documents
    return {(found["kind"], found["metadata"]["name"]): found for found in documents}


def test_the_namespace_comes_first_and_is_restricted() -> None:
    first = render(order(Kind.TENANCY)).documents[0]
    assert (first["kind"], first["metadata"]["name"]) == ("Namespace", "team-red")
    assert first["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_privileged_fabric_says_so() -> None:
    rendered = render(order(Kind.TENANCY, on=pool({"fabric": {"needs_privileged": True}})))
    assert rendered.documents[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert "the fabric needs privilege" in rendered.notes[0]


def test_there_the_policies_stand_in_for_pod_security() -> None:
    name = ("ValidatingAdmissionPolicy", "warpbeam-team-red-pods")
    rules = applied({"fabric": {"needs_privileged": True}})[name]["spec"]["validations"]
    expressions = " ".join(rule["expression"] for rule in rules)
    for word in ("hostPath", "hostNetwork", "allowPrivilegeEscalation", "privileged", "IPC_LOCK"):
        assert word in expressions
        assert word not in " ".join(rule["expression"] for rule in applied()[name]["spec"]["validations"])


def test_the_quota_is_the_teams() -> None:
    hard = applied()[("ResourceQuota", "warpbeam")]["spec"]["hard"]
    assert hard["requests.nvidia.com/gpu"] == "16"
    assert hard["limits.memory"] == hard["requests.memory"] == "4000Gi"
    assert ("ResourceQuota", "warpbeam") not in applied({"teams": {"red": {"namespace": "team-red"}}})


def test_workload_identity_belongs_to_the_service_account() -> None:
    team = {"namespace": "team-red", "service_account": "trainer", "service_account_annotations": {"a.b/role": "x"}}
    found = applied({"teams": {"red": team}, "credentials": {"workload_identity": True}})
    account = found[("ServiceAccount", "trainer")]
    assert account["metadata"]["annotations"] == {"a.b/role": "x"}
    assert account["automountServiceAccountToken"] is False


def test_pods_are_held_to_image_account_and_limits() -> None:
    policy = applied()[("ValidatingAdmissionPolicy", "warpbeam-team-red-pods")]["spec"]
    assert policy["failurePolicy"] == "Fail"
    match = policy["matchConstraints"]
    assert match["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "team-red"}}
    assert match["resourceRules"][0]["resources"] == ["pods", "pods/ephemeralcontainers"]
    expressions = " ".join(rule["expression"] for rule in policy["validations"])
    for word in (f'c.image == "{IMAGE}"', 'serviceAccountName == "warpbeam"', "initContainers", "'memory' in"):
        assert word in expressions
    binding = applied()[("ValidatingAdmissionPolicyBinding", "warpbeam-team-red-pods")]["spec"]
    assert binding == {"policyName": "warpbeam-team-red-pods", "validationActions": ["Deny"]}


@pytest.mark.parametrize(
    ("kubernetes", "label"),
    [
        ({"gang": "kueue", "queue": "q"}, "kueue.x-k8s.io/queue-name"),
        ({"gang": "volcano", "queue": "q"}, "volcano.sh/queue-name"),
        ({"gang": "yunikorn", "queue": "q"}, "yunikorn.apache.org/queue"),
    ],
)
def test_whatever_computes_goes_through_the_queue(kubernetes: dict[str, Any], label: str) -> None:
    policy = applied(kubernetes)[("ValidatingAdmissionPolicy", "warpbeam-team-red-queue")]["spec"]
    (rule,) = policy["validations"]
    assert f'object.metadata.labels["{label}"] == "q"' in rule["expression"]
    assert "goes through the team's queue" in rule["message"]


def test_what_we_render_keeps_to_the_policies() -> None:
    """By hand what the expressions say, on the pods that we write ourselves."""
    kueue = pool({"gang": "kueue", "queue": "q"})
    for kind in (Kind.RAYJOB, Kind.RAYCLUSTER, Kind.RAYSERVICE):
        manifest = render(order(kind, on=kueue)).documents[-1]
        assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"


def test_without_queues_there_is_no_policy_for_them() -> None:
    assert not [name for _, name in applied() if name.endswith("-queue")]


def test_a_cpu_pool_counts_no_accelerators() -> None:
    quota = {"accelerators": 0, "cpus": 8, "memory_gib": 64}
    made = order(Kind.TENANCY, on=on(CPU, teams={"red": {"namespace": "team-red", "quota": quota}}), of=job())
    hard = next(found for found in render(made).documents if found["kind"] == "ResourceQuota")["spec"]["hard"]
    assert not [name for name in hard if "gpu" in name]
