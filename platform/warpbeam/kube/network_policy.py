"""Who may talk to a run's pods and whom they may reach; everything else, other tenants first, is shut out.

Inside a run all ports are open: Ray, gloo and NCCL choose theirs as they go. Ports are those of pods, as a policy sees
them, not those of services.
"""

from __future__ import annotations

from typing import Any, Final

from warpbeam.kube import names
from warpbeam.kube.order import Kind, Order
from warpbeam.kube.pods import METRICS_PORT
from warpbeam.kube.service import SERVE_PORT
from warpbeam.pool_kubernetes import Network, Peer

Manifest = dict[str, Any]

DASHBOARD_PORT: Final = 8265
AGENT_PORT: Final = 52365
RUN_METRICS_PORT: Final = 9464
"""Of callbacks/prometheus.py in rank 0 (a test compares them; that module is not imported here)."""
METRICS_PORTS: Final = (METRICS_PORT, RUN_METRICS_PORT, 44217, 44227)
"""Every node's, Ray's autoscaler's and the dashboard's."""
DNS_PORT: Final = 53


def network_policy(order: Order) -> Manifest | None:
    """The run's NetworkPolicy; None where the pool does not describe its network."""
    network = order.kubernetes.network
    if network is None:
        return None
    own = {"podSelector": {"matchLabels": {names.RUN: order.job.name, names.TEAM: order.job.team}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": f"{order.name}-{order.kind}",
            "namespace": order.team.namespace,
            "labels": dict(order.labels),
        },
        "spec": {
            **own,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [own]}, *_ingress(order, network)],
            "egress": [{"to": [own]}, *_egress(order, network)],
        },
    }


def _ingress(order: Order, network: Network) -> list[Manifest]:
    serves = order.kind is Kind.RAYSERVICE
    asked = (DASHBOARD_PORT, AGENT_PORT, *((SERVE_PORT,) if serves else ()))
    rules = [{"from": [_selector(network.operator)], "ports": _tcp(*asked)}]
    if network.monitoring is not None:
        rules.append({"from": [_selector(network.monitoring)], "ports": _tcp(*METRICS_PORTS)})
    if serves and network.clients:
        rules.append({"from": [_selector(peer) for peer in network.clients], "ports": _tcp(SERVE_PORT)})
    return rules


def _egress(order: Order, network: Network) -> list[Manifest]:
    dns = [{"protocol": protocol, "port": DNS_PORT} for protocol in ("UDP", "TCP")]
    peers = [*network.api_server, *network.store, *network.hub]
    serve = order.kubernetes.serve
    if order.kind is Kind.RAYSERVICE and serve and serve.redis and serve.redis.peer:
        peers.append(serve.redis.peer)
    rules: list[Manifest] = [{"to": [_selector(network.dns)], "ports": dns}]
    for peer in peers:
        rules.append({"to": [_selector(peer)], **({"ports": _tcp(*peer.ports)} if peer.ports else {})})
    return rules


def _selector(peer: Peer) -> Manifest:
    if peer.cidr is not None:
        return {"ipBlock": {"cidr": peer.cidr}}
    found: Manifest = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": peer.namespace}}}
    return found | ({"podSelector": {"matchLabels": dict(peer.labels)}} if peer.labels else {})


def _tcp(*ports: int) -> list[Manifest]:
    return [{"protocol": "TCP", "port": port} for port in ports]
