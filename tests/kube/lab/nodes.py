"""The two kinds of node: real ones (containerd and a kubelet) and pretended ones (KWOK)."""

from __future__ import annotations

import json
from typing import Any

from tests.kube.lab import images
from tests.kube.lab.api import Api
from tests.kube.lab.layout import API, Place, node_address, node_bridge, node_name, node_pods
from tests.kube.lab.programs import program
from tests.kube.lab.sandbox import Sandbox

GPU = "nvidia.com/gpu"
FAKE = "kwok.x-k8s.io/node"
FAKE_TAINT = {"key": FAKE, "value": "fake", "effect": "NoSchedule"}
FAKE_ROOM = {"cpu": "192", "memory": "2000Gi", "pods": "110", "ephemeral-storage": "4000Gi", GPU: "8"}
SCRATCH = "200Gi"
"""What a real node says that its disk has: the kubelet does not measure it here."""
_CRI = "io.containerd.grpc.v1.cri"


def containerd_command(place: Place, node: str) -> list[object]:
    """A container runtime of the node's own."""
    folder = place.node(node)
    config = f"""version = 2
root = "{folder}/containerd"
state = "/run/containerd-{node}"
[grpc]
  address = "{place.containerd_socket(node)}"
[plugins."{_CRI}"]
  sandbox_image = "{images.PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_port = "0"
[plugins."{_CRI}".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{folder}/cni"
[plugins."{_CRI}".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
[plugins."{_CRI}".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."{_CRI}".containerd.runtimes.runc.options]
  SystemdCgroup = false
"""
    return ["containerd", "--config", place.write(folder / "containerd.toml", config)]


def write_pod_network(place: Place, number: int) -> None:
    """Pods of a node hang on its bridge; the bridge plugin enforces no NetworkPolicy."""
    addresses = {
        "type": "host-local",
        "dataDir": f"{place.node(node_name(number))}/addresses",
        "ranges": [[{"subnet": node_pods(number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": node_bridge(number), "isGateway": True, "hairpinMode": True}
    plugins = [bridge | {"ipMasq": False, "ipam": addresses}, {"type": "loopback"}]
    content = {"cniVersion": "1.0.0", "name": "lab", "plugins": plugins}
    place.write(place.node(node_name(number)) / "cni/lab.conflist", json.dumps(content))


def kubelet_command(place: Place, number: int) -> list[object]:
    """The node's agent. On control groups v1 it must be told that this is meant."""
    node = node_name(number)
    folder, keys = place.node(node), place.keys
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "containerRuntimeEndpoint": f"unix://{place.containerd_socket(node)}",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": f"{keys}/ca.crt"}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{keys}/{node}.crt",
        "tlsPrivateKeyFile": f"{keys}/{node}.key",
        "address": node_address(number),
        "port": 10250,
        "healthzPort": 10258 + number,
        "readOnlyPort": 0,
        "clusterDomain": "cluster.local",
        "clusterDNS": [API],
        "resolvConf": str(place.root / "resolv.conf"),
        "podLogsDir": f"{folder}/pod-logs",
        "volumePluginDir": f"{folder}/volume-plugins",
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "5s",  # else a secret that is filled after a pod's start is seen a minute later
    }
    return [
        program("kubelet"),
        f"--config={place.write(folder / 'kubelet.json', json.dumps(config))}",
        f"--kubeconfig={place.kubeconfig(node)}",
        f"--hostname-override={node}",
        f"--node-ip={node_address(number)}",
        f"--root-dir={folder}/kubelet",
        f"--cert-dir={folder}/kubelet/pki",
    ]


def import_images(sandbox: Sandbox, node: str) -> None:
    """Give a node the images that no registry has."""
    socket = sandbox.place.containerd_socket(node)
    for image in (images.pause(), images.runtime()):
        archive = sandbox.place.root / f"{image.digest.removeprefix('sha256:')[:12]}.tar"
        if not archive.exists():
            archive.write_bytes(image.archive)
        sandbox.run("ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", archive)


def advertise(api: Api, node: str, resources: dict[str, str]) -> None:
    """Let a node offer what no device plugin found: the scheduler and the kubelet count it like any other."""
    patch = [
        {"op": "add", "path": f"/status/{where}/{name.replace('/', '~1')}", "value": amount}
        for name, amount in resources.items()
        for where in ("capacity", "allocatable")
    ]
    api.patch(f"/api/v1/nodes/{node}/status", patch, kind="json")


def add_fake_nodes(api: Api, count: int, *, gpus: int = 8, tainted: bool = True) -> list[str]:
    """Nodes without machines: KWOK says that their pods run. Real pods do not go there unless they accept the taint."""
    names = [f"fake-{number:04d}" for number in range(count)]
    room = FAKE_ROOM | {GPU: str(gpus)}
    for name in names:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {FAKE: "fake"},
                "labels": {"kubernetes.io/hostname": name, "type": "kwok"},
            },
            "spec": {"taints": [FAKE_TAINT]} if tainted else {},
        }
        api.apply(node)
        api.apply({**node, "status": {"capacity": room, "allocatable": room}}, subresource="status")
    return names


def remove_fake_nodes(api: Api) -> None:
    """Take all of them away."""
    for node in api.list("v1", "Node", labels="type=kwok"):
        api.delete("v1", "Node", None, node["metadata"]["name"])


def is_ready(api: Api, node: str) -> bool:
    """Whether a node takes pods."""
    found = api.get("v1", "Node", None, node)
    conditions = (found or {}).get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
