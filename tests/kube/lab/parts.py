"""The control plane: how each program is called. What a program does not need is off."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.kube.lab.layout import API, API_PORT, PODS, SERVICES, Place, node_name
from tests.kube.lab.programs import program

ETCD = "http://127.0.0.1:2379"
OPERATOR_HEALTH = "127.0.0.1:8086"
Words = list[object]


def command(place: Place, part: str) -> Words:
    """The command line of a part of the control plane.

    Raises:
        KeyError: there is no such part.
    """
    return PARTS[part](place)


def _etcd(place: Place) -> Words:
    peers = "http://127.0.0.1:2380"
    urls = {"listen-client-urls": ETCD, "advertise-client-urls": ETCD, "listen-peer-urls": peers}
    urls |= {"initial-advertise-peer-urls": peers, "initial-cluster": f"default={peers}"}
    flags = [f"--{name}={value}" for name, value in urls.items()]
    # Nothing of it must survive the machine, so nothing waits for a disk.
    return [program("etcd"), f"--data-dir={place.root}/etcd", "--unsafe-no-fsync", "--log-level=warn", *flags]


def _api_server(place: Place) -> Words:
    keys = place.keys
    return [
        program("kube-apiserver"),
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        f"--secure-port={API_PORT}",
        f"--advertise-address={API}",
        f"--service-cluster-ip-range={SERVICES}",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        f"--token-auth-file={keys}/tokens.csv",
        f"--client-ca-file={keys}/ca.crt",
        f"--tls-cert-file={keys}/apiserver.crt",
        f"--tls-private-key-file={keys}/apiserver.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={keys}/accounts.pub",
        f"--service-account-signing-key-file={keys}/accounts.key",
        f"--kubelet-client-certificate={keys}/kubelet-client.crt",
        f"--kubelet-client-key={keys}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--profiling=false",
    ]


def _controller_manager(place: Place) -> Words:
    """Node grace periods stay Kubernetes' own: what a lost node costs is to be measured with them."""
    return [
        program("kube-controller-manager"),
        *_kubeconfigs(place, "controller-manager"),
        f"--service-account-private-key-file={place.keys}/accounts.key",
        f"--root-ca-file={place.keys}/ca.crt",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        f"--cluster-cidr={PODS}",
        "--allocate-node-cidrs=false",
        "--bind-address=127.0.0.1",
    ]


def _scheduler(place: Place) -> Words:
    flags = ["--leader-elect=false", "--bind-address=127.0.0.1"]
    return [program("kube-scheduler"), *_kubeconfigs(place, "scheduler"), *flags]


def _kubeconfigs(place: Place, user: str) -> Words:
    path = place.kubeconfig(user)
    return [f"--{purpose}kubeconfig={path}" for purpose in ("", "authentication-", "authorization-")]


def _proxy(place: Place) -> Words:
    """One for all nodes: they share the machine's network."""
    config: dict[str, Any] = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": PODS,
        "hostnameOverride": node_name(1),
        "clientConnection": {"kubeconfig": str(place.kubeconfig("proxy"))},
        "conntrack": {"maxPerCore": 0, "min": 0},  # else it wants to change what belongs to the machine
        "bindAddress": API,
        "metricsBindAddress": "127.0.0.1:10249",
        "healthzBindAddress": "127.0.0.1:10256",
    }
    return [program("kube-proxy"), f"--config={place.write('proxy.json', json.dumps(config))}"]


def _dns(place: Place) -> Words:
    zones = "cluster.local in-addr.arpa"
    lines = [f"bind {API}", "errors", "health 127.0.0.1:8181", f"kubernetes {zones} {{"]
    lines += [f" kubeconfig {place.kubeconfig('dns')} lab", " ttl 1", "}"]
    text = "\n".join([f"{zones} {{", *(f" {line}" for line in lines), "}", ""])
    return [program("coredns"), "-conf", place.write("Corefile", text)]


def _operator(place: Place) -> Words:
    return [
        "env",
        f"KUBECONFIG={place.kubeconfig('admin')}",
        "ENABLE_WEBHOOKS=false",
        program("ray-operator"),
        "--metrics-addr=127.0.0.1:8085",
        f"--health-probe-bind-address={OPERATOR_HEALTH}",
        "--enable-leader-election=false",
        "--feature-gates=RayCronJob=true",
        "--log-stdout-encoder=console",
    ]


def _kwok(place: Place) -> Words:
    return [
        program("kwok"),
        f"--kubeconfig={place.kubeconfig('admin')}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
        "--server-address=127.0.0.1:10247",
    ]


PARTS: dict[str, Callable[[Place], Words]] = {
    "etcd": _etcd,
    "apiserver": _api_server,
    "controller-manager": _controller_manager,
    "scheduler": _scheduler,
    "proxy": _proxy,
    "dns": _dns,
    "operator": _operator,
    "kwok": _kwok,
}
