"""What a NetworkPolicy lets through, worked out without a cluster.

Kubernetes' semantics, from the API reference: a pod that some policy of a direction selects gets in that direction only
what a rule of one of those policies allows; a connection needs the sender's egress and the receiver's ingress.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class End:
    """A pod of a namespace, or an address outside the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "10.244.0.9"


@dataclass(frozen=True)
class Flow:
    """One connection; the port is the receiving pod's."""

    source: End
    target: End
    port: int
    protocol: str = "TCP"


def allowed(flow: Flow, policies: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the connection comes about."""
    return _passes(flow, policies, "Egress") and _passes(flow, policies, "Ingress")


def _passes(flow: Flow, policies: Sequence[Mapping[str, Any]], direction: Literal["Egress", "Ingress"]) -> bool:
    own, other = (flow.source, flow.target) if direction == "Egress" else (flow.target, flow.source)
    if not own.namespace:
        return True  # no policy governs what is outside
    governing = [
        policy
        for policy in policies
        if direction in policy["spec"]["policyTypes"]
        and policy["metadata"]["namespace"] == own.namespace
        and _selects(policy["spec"]["podSelector"], own.labels)
    ]
    if not governing:
        return True
    peers = "to" if direction == "Egress" else "from"
    rules = [rule for policy in governing for rule in policy["spec"].get(direction.lower(), [])]
    return any(_rule_allows(rule, peers, other, own.namespace, flow) for rule in rules)


def _rule_allows(rule: Mapping[str, Any], peers: str, other: End, namespace: str, flow: Flow) -> bool:
    ports = rule.get("ports", [])
    if ports and not any(port["port"] == flow.port and port["protocol"] == flow.protocol for port in ports):
        return False
    there = rule.get(peers, [])
    return not there or any(_peer_is(peer, other, namespace) for peer in there)


def _peer_is(peer: Mapping[str, Any], other: End, namespace: str) -> bool:
    if "ipBlock" in peer:
        inside = ipaddress.ip_address(other.address) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
        return not other.namespace and inside
    if not other.namespace:
        return False
    spaces = peer.get("namespaceSelector")
    names = {"kubernetes.io/metadata.name": other.namespace}
    right_space = other.namespace == namespace if spaces is None else _selects(spaces, names)
    return right_space and _selects(peer.get("podSelector", {}), other.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
