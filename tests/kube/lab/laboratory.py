"""One laboratory from its start to its end: in which order parts come up, and how they are broken and mended."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.kube.lab import kueue, nodes, parts
from tests.kube.lab.api import Api
from tests.kube.lab.keys import ADMIN, kubeconfig, make_keys, token_of
from tests.kube.lab.layout import API, API_PORT, Place, node_bridge, node_name
from tests.kube.lab.programs import lacking, manifests
from tests.kube.lab.sandbox import LabError, Sandbox, wait_for
from tests.kube.lab.tunnel import tunnel_command

AFTER_API = ("controller-manager", "scheduler", "proxy", "dns")
RAY = "ray.io/v1"
API_TUNNEL = "tunnel-api"


@dataclass(frozen=True)
class Laboratory:
    """A laboratory in a folder, whether it runs or not."""

    place: Place

    @property
    def sandbox(self) -> Sandbox:
        return Sandbox(self.place)

    @property
    def is_up(self) -> bool:
        return self.sandbox.runs("sandbox")

    def up(
        self, *, real_nodes: int = 3, gpus: int = 8, with_kueue: bool = False, say: Callable[[str], None] = print
    ) -> None:
        """Start everything, and wait until pods can run.

        Raises:
            LabError: the machine lacks something, a laboratory is there already, or a part does not come up.
        """
        began = time.monotonic()
        if reasons := lacking():
            raise LabError("no laboratory here: " + "; ".join(reasons))
        if self.place.root.exists():
            raise LabError(f"there is one in {self.place.root}: take it down first")
        self.place.root.mkdir(mode=0o711)  # pods of another user mount folders below it
        self.place.write("size.json", json.dumps({"nodes": real_nodes, "gpus": gpus}))
        make_keys(self.place, real_nodes)
        self.sandbox.open(real_nodes)
        self._start_control_plane()
        api = self.api()
        say(f"{time.monotonic() - began:5.1f} s  API server at {self.place.outside_kubeconfig}")
        for number in range(1, real_nodes + 1):
            self._start_node(number)
        for crd in manifests("operator"):
            api.create(crd)
        wait_for("KubeRay's kinds", lambda: {"RayCluster", "RayJob", "RayService", "RayCronJob"} <= api.kinds(RAY))
        self.start("operator")
        for number in range(1, real_nodes + 1):
            self._wait_for_node(api, number)
        say(f"{time.monotonic() - began:5.1f} s  {real_nodes} nodes, KubeRay's operator")
        if with_kueue:
            kueue.install(api)
            say(f"{time.monotonic() - began:5.1f} s  Kueue")
        api.close()

    def _start_control_plane(self) -> None:
        for part in ("etcd", "apiserver"):
            self.start(part)
        port = self.tunnel(API_TUNNEL, inside=f"127.0.0.1:{API_PORT}", outside="127.0.0.1:0")
        token = token_of(self.place.kubeconfig(ADMIN))
        content = kubeconfig(f"https://127.0.0.1:{port}", self.place.keys / "ca.crt", token)
        self.place.write(self.place.outside_kubeconfig, json.dumps(content), 0o600)
        api = self.api()
        wait_for("API server", lambda: api.ready() or self._must_run("etcd", "apiserver"))
        api.close()
        for part in AFTER_API:
            self.start(part)

    def _must_run(self, *names: str) -> bool:
        """False, so that waiting goes on; raises LabError where it would be in vain."""
        for name in names:
            if not self.sandbox.runs(name):
                raise LabError(f"{name} has ended: {self.sandbox.log(name)}")
        return False

    def _start_node(self, number: int) -> None:
        name = node_name(number)
        nodes.write_pod_network(self.place, number)
        self.start(f"containerd-{name}")
        socket = self.place.containerd_socket(name)
        runtime = ("ctr", "--address", socket, "version")
        wait_for(f"containerd of {name}", lambda: self.sandbox.run(*runtime, check=False).returncode == 0)
        nodes.import_images(self.sandbox, name)
        self.start(f"kubelet-{name}")

    def _wait_for_node(self, api: Api, number: int) -> None:
        """Until it takes pods, and offers what no device plugin found."""
        name = node_name(number)
        wait_for(f"node {name} ({self.place.logs})", lambda: nodes.is_ready(api, name))
        nodes.advertise(api, name, {nodes.GPU: str(self._size()["gpus"]), "ephemeral-storage": nodes.SCRATCH})

    def api(self) -> Api:
        """The administrator's connection, from outside."""
        config = json.loads(self.place.outside_kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        return Api(cluster["server"], cluster["certificate-authority"], user["token"])

    def tunnel(self, name: str, *, inside: str, outside: str, inwards: bool = True) -> int:
        """Join an address inside with one of the machine; returns the port that listens.

        Args:
            inwards: programs of the machine reach `inside`; otherwise pods reach `outside`.
        """
        ready = self.place.root / f"{name}.port"
        ready.unlink(missing_ok=True)
        holder = self.sandbox.pid("sandbox")
        self.sandbox.spawn(
            name, tunnel_command(holder, inside=inside, outside=outside, inwards=inwards, ready=ready), inside=False
        )
        wait_for(name, lambda: (ready.exists() and ready.read_text()) or self._must_run(name))
        return int(ready.read_text())

    def let_pods_reach(self, name: str, port: int) -> str:
        """Open a port of the machine's loopback address to pods; returns the address that they use."""
        address = f"{API}:{port}"
        tunnel = f"tunnel-{name}-{port}"
        if not self.sandbox.runs(tunnel):
            self.tunnel(tunnel, inside=address, outside=f"127.0.0.1:{port}", inwards=False)
        return address

    # ---- faults

    def start(self, name: str) -> None:
        """Start a part, anew where it has been killed.

        Raises:
            LabError: there is no such part, or it runs.
        """
        if self.sandbox.runs(name):
            raise LabError(f"{name} runs already")
        self.sandbox.spawn(name, self._command(name))

    def _command(self, name: str) -> list[object]:
        if name in parts.PARTS:
            return parts.command(self.place, name)
        kind, _, node = name.partition("-")
        known = {node_name(number): number for number in range(1, self._size()["nodes"] + 1)}
        if kind not in ("containerd", "kubelet") or node not in known:
            there = [*parts.PARTS, *(f"{kind}-{node}" for node in known for kind in ("containerd", "kubelet"))]
            raise LabError(f"there is no part {name}, there are: {', '.join(there)}")
        if kind == "containerd":
            return nodes.containerd_command(self.place, node)
        return nodes.kubelet_command(self.place, known[node])

    def _size(self) -> dict[str, int]:
        found: dict[str, int] = json.loads((self.place.root / "size.json").read_text())
        return found

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Break a part."""
        self.sandbox.kill(name, number)

    def lose_node(self, number: int) -> None:
        """A node vanishes: its kubelet is dead, and its pods' connections stand still without being closed."""
        self.kill(f"kubelet-{node_name(number)}")
        self.sandbox.run("ip", "link", "set", node_bridge(number), "down")

    def find_node(self, number: int) -> None:
        """The node is there again, with what still runs on it."""
        self.sandbox.run("ip", "link", "set", node_bridge(number), "up")
        self.start(f"kubelet-{node_name(number)}")
        api = self.api()
        self._wait_for_node(api, number)
        api.close()

    def add_fake_nodes(self, count: int, *, gpus: int = 8, tainted: bool = True) -> list[str]:
        """Nodes without machines (KWOK), beside the real ones."""
        if not self.sandbox.runs("kwok"):
            self.start("kwok")
        api = self.api()
        names = nodes.add_fake_nodes(api, count, gpus=gpus, tainted=tainted)
        wait_for("fake nodes", lambda: all(nodes.is_ready(api, name) for name in names))
        api.close()
        return names

    def down(self) -> None:
        """End every process, whoever started it, and remove every file. Also what a killed program left."""
        if self.place.root.exists():
            self.sandbox.close()

    def logs(self) -> Path:
        """Where every part writes."""
        return self.place.logs
