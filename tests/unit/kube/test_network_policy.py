"""The run's NetworkPolicy against a list of flows. No network has enforced it here; docs/kubernetes.md says so."""

from __future__ import annotations

import pytest

from tests.unit.kube.orders import job, order, pod_templates, pool
from tests.unit.kube.policy_flows import End, Flow, allowed
from warpbeam.kube import names
from warpbeam.kube.admission import tenancy
from warpbeam.kube.network_policy import network_policy
from warpbeam.kube.order import Kind

OWN = {names.RUN: "tiny", names.TEAM: "red"}
HEAD = End("team-red", OWN | {"ray.io/node-type": "head"})
WORKER = End("team-red", OWN | {"ray.io/node-type": "worker"})
SUBMITTER = End("team-red", OWN)
NEIGHBOUR = End("team-red", {names.RUN: "other", names.TEAM: "red"})
TENANT = End("team-blue", {names.RUN: "tiny", names.TEAM: "blue"})
DISGUISED = End("team-blue", OWN)
OPERATOR = End("kuberay-system", {"app": "kuberay-operator"})
PROMETHEUS = End("monitoring")
FRONT = End("gateway", {"app": "front"})
DNS = End("kube-system", {"k8s-app": "kube-dns"})
API_SERVER = End(address="10.0.0.1")
STORE = End("storage")
REDIS = End("redis")
HUB = End(address="192.0.2.7")
INTERNET = End(address="203.0.113.5")

MUST_PASS = [
    Flow(HEAD, DNS, 53, "UDP"),
    Flow(WORKER, DNS, 53),
    Flow(HEAD, API_SERVER, 6443),
    Flow(HEAD, STORE, 9000),
    Flow(WORKER, STORE, 9000),
    Flow(SUBMITTER, STORE, 9000),
    Flow(WORKER, HEAD, 6379),
    Flow(HEAD, WORKER, 34567),
    Flow(WORKER, WORKER, 51234),
    Flow(WORKER, WORKER, 40000, "UDP"),
    Flow(SUBMITTER, HEAD, 8265),
    Flow(OPERATOR, HEAD, 8265),
    Flow(PROMETHEUS, WORKER, 8080),
    Flow(PROMETHEUS, HEAD, 44217),
    Flow(WORKER, HUB, 443),
]
MUST_NOT = [
    Flow(TENANT, HEAD, 8265),
    Flow(TENANT, HEAD, 6379),
    Flow(TENANT, WORKER, 8080),
    Flow(DISGUISED, HEAD, 8265),
    Flow(NEIGHBOUR, HEAD, 8265),
    Flow(HEAD, TENANT, 8265),
    Flow(WORKER, DISGUISED, 6379),
    Flow(WORKER, NEIGHBOUR, 6379),
    Flow(OPERATOR, HEAD, 6379),
    Flow(PROMETHEUS, HEAD, 8265),
    Flow(FRONT, HEAD, 8265),
    Flow(INTERNET, HEAD, 8265),
    Flow(WORKER, INTERNET, 443),
    Flow(WORKER, API_SERVER, 22),
    Flow(WORKER, STORE, 22),
    Flow(WORKER, End("kube-system", {"app": "other"}), 53),
]
policy = network_policy(order())
assert policy is not None


@pytest.mark.parametrize("flow", MUST_PASS, ids=str)
def test_what_a_run_needs_passes(flow: Flow) -> None:
    assert allowed(flow, [policy])


@pytest.mark.parametrize("flow", MUST_NOT, ids=str)
def test_everything_else_is_shut_out(flow: Flow) -> None:
    assert not allowed(flow, [policy])


def test_without_a_policy_everybody_would_pass() -> None:
    assert allowed(Flow(TENANT, HEAD, 8265), []), "the evaluator can say yes"


def test_a_namespace_denies_what_no_run_has_opened() -> None:
    deny = next(found for found in tenancy(order(Kind.TENANCY)) if found["kind"] == "NetworkPolicy")
    stranger = End("team-red", {"app": "forgotten"})
    assert not allowed(Flow(stranger, INTERNET, 443), [deny, policy])
    assert not allowed(Flow(TENANT, stranger, 80), [deny, policy])
    for flow in MUST_PASS:
        assert allowed(flow, [deny, policy])


def test_only_a_served_model_can_be_asked() -> None:
    served = network_policy(order(Kind.RAYSERVICE))
    assert served is not None
    for flow in (Flow(FRONT, WORKER, 8000), Flow(OPERATOR, HEAD, 8000), Flow(HEAD, REDIS, 6379)):
        assert allowed(flow, [served])
        assert not allowed(flow, [policy])
    assert not allowed(Flow(End("gateway", {"app": "back"}), WORKER, 8000), [served])
    assert not allowed(Flow(TENANT, WORKER, 8000), [served])


def test_the_policy_selects_every_pod_of_the_run() -> None:
    selector = policy["spec"]["podSelector"]["matchLabels"]
    for kind in (Kind.RAYJOB, Kind.RAYCLUSTER, Kind.RAYSERVICE, Kind.RAYCRONJOB):
        found = [template["metadata"]["labels"] for template in pod_templates(order(kind))]
        assert len(found) >= 2
        assert all(selector.items() <= labels.items() for labels in found)


def test_a_pool_without_a_network_has_no_policy() -> None:
    assert network_policy(order(on=pool({"network": None}), of=job())) is None
