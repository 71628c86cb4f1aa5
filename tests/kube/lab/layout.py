"""Where a laboratory keeps its files, and which addresses it has inside its own network."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
MODULES = REPOSITORY / "tests/kube/modules"

API = "10.88.0.1"
"""Of the machine inside its private network; API server, DNS and tunnels listen there."""
API_PORT = 6443
PODS = "10.88.0.0/16"
SERVICES = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"
"""The first address of SERVICES, which the API server takes for itself."""


def node_name(number: int) -> str:
    """Nodes count from 1."""
    return f"node{number}"


def node_address(number: int) -> str:
    """Of a node's bridge, which is the node's own address and its pods' gateway."""
    return f"10.88.{number}.1"


def node_bridge(number: int) -> str:
    """The network device that all pods of a node hang on: down, the node is cut off without a goodbye."""
    return f"wbn{number}"


def node_pods(number: int) -> str:
    """Addresses of a node's pods."""
    return f"10.88.{number}.0/24"


@dataclass(frozen=True)
class Place:
    """The folder of one laboratory. Its name also names the control groups, so that two never mix."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def processes(self) -> Path:
        """One file for each process: which one it is, so that exactly that one is ended."""
        return self.root / "processes"

    def kubeconfig(self, user: str) -> Path:
        """For processes inside the private network."""
        return self.root / "kubeconfig" / user

    @property
    def outside_kubeconfig(self) -> Path:
        """The administrator's, for programs of the machine itself: it leads through a tunnel."""
        return self.root / "kubeconfig" / "outside"

    def node(self, name: str) -> Path:
        return self.root / name

    def containerd_socket(self, node: str) -> Path:
        return self.node(node) / "containerd.sock"

    @property
    def groups(self) -> list[Path]:
        """Its control groups; none before it was opened."""
        path = self.root / "groups.json"
        return [Path(line) for line in json.loads(path.read_text())] if path.exists() else []

    def write(self, path: str | Path, text: str, mode: int = 0o644) -> Path:
        """A file below the folder."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(mode=mode)
        target.write_text(text)
        return target


def default_place(purpose: str = "") -> Place:
    """One for each clone of the repository and purpose. Short: paths of Unix sockets may have 107 bytes."""
    if named := os.environ.get("WARPBEAM_KUBE_LAB"):
        return Place(Path(named).resolve())
    clone = hashlib.sha256(f"{REPOSITORY}\0{purpose}".encode()).hexdigest()[:8]
    return Place(Path("/tmp") / f"wb-kube-{clone}")
