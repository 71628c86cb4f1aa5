"""A real API server with its store and KubeRay's CRDs, without machines: what the client's requests are tried against.

    WARPBEAM_KUBE_BIN   folder with `etcd` and `kube-apiserver`
    WARPBEAM_KUBE_CRDS  folder with KubeRay's CRDs (`config/crd/bases` of the operator's release)

Where they are not set, what `make kube-lab-install` has built is used. Without either the tests are skipped, unless
WARPBEAM_REQUIRE_KUBE is 1: then that is a failure.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.kube.lab_fixture import REQUIRE
from warpbeam.errors import WarpbeamError
from warpbeam.kube.client import Cluster

Object = dict[str, Any]
USERS = {"admin": "system:masters", "ann": "ml", "bob": ""}
"""Who may log in, and in which group; a user's token is the name and `-token`."""
START_S = 60.0


@dataclass
class ApiServer:
    """One running server."""

    url: str
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)

    def kubeconfig(self, user: str, *, token: str = "", url: str = "") -> Path:
        """A file by which `user` reaches it."""
        authority = str(self.folder / "certificates" / "apiserver.crt")  # it has signed itself
        path = self.folder / f"kubeconfig-{user}-{secrets.token_hex(3)}"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": url or self.url, "certificate-authority": authority}}],
            "users": [{"name": user, "user": {"token": token or f"{user}-token"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
        }
        path.write_text(json.dumps(content))
        return path

    def cluster(self, user: str = "admin", *, token: str = "", url: str = "") -> Cluster:
        """The client as this user."""
        before = os.environ.get("KUBECONFIG")
        os.environ["KUBECONFIG"] = str(self.kubeconfig(user, token=token, url=url))
        try:
            return Cluster.connect()
        finally:
            if before is None:
                del os.environ["KUBECONFIG"]
            else:
                os.environ["KUBECONFIG"] = before

    def namespace(self) -> str:
        """A fresh one."""
        name = f"test-{secrets.token_hex(4)}"
        self.cluster().apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name

    def start(self, name: str) -> None:
        """Start a part that does not run."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(self.commands[name], stdout=log, stderr=log)

    def stop(self, name: str) -> None:
        """End a part."""
        process = self.processes.pop(name, None)
        if process is not None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def wait_ready(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + START_S
        while not _ready(self.url):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the API server did not start: see {self.folder}/kube-apiserver.log")
            time.sleep(0.2)


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """The session's API server; every test makes a namespace of its own."""
    programs, crds = _parts()
    with tempfile.TemporaryDirectory(prefix="warpbeam-apiserver-") as folder:
        server = _made(Path(folder), programs)
        try:
            for name in server.commands:
                server.start(name)
            server.wait_ready()
            _install(server, crds)
            yield server
        finally:
            for name in reversed(list(server.processes)):
                server.stop(name)


def _parts() -> tuple[Path, list[Object]]:
    """Programs, and KubeRay's CRDs."""
    programs, crds = os.environ.get("WARPBEAM_KUBE_BIN"), os.environ.get("WARPBEAM_KUBE_CRDS")
    if programs and crds:
        yaml = YAML(typ="safe", pure=True)
        return Path(programs), [yaml.load(path.read_text()) for path in sorted(Path(crds).glob("*.yaml"))]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "warpbeam" / "kube-lab"
    for built in sorted(cache.glob("*/operator.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        if all((built.parent / "bin" / name).is_file() for name in ("etcd", "kube-apiserver")):
            return built.parent / "bin", json.loads(built.read_text())
    reason = "no API server: set WARPBEAM_KUBE_BIN and WARPBEAM_KUBE_CRDS, or build one: make kube-lab-install"
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _made(folder: Path, programs: Path) -> ApiServer:
    store, peer, port = (_free_port() for _ in range(3))
    rows = [f"{user}-token,{user},{user}" + (f',"{group}"' if group else "") for user, group in USERS.items()]
    (folder / "tokens.csv").write_text("\n".join(rows) + "\n")
    subprocess.run(["openssl", "genrsa", "-out", folder / "sa.key", "2048"], check=True, capture_output=True)
    at, of_peer = f"http://127.0.0.1:{store}", f"http://127.0.0.1:{peer}"
    etcd = [f"{programs}/etcd", "--data-dir", f"{folder}/etcd", "--unsafe-no-fsync", "--log-level", "warn"]
    etcd += ["--listen-client-urls", at, "--advertise-client-urls", at, "--listen-peer-urls", of_peer]
    etcd += ["--initial-advertise-peer-urls", of_peer, "--initial-cluster", f"default={of_peer}"]
    key = f"{folder}/sa.key"
    api = [f"{programs}/kube-apiserver", f"--etcd-servers={at}", "--bind-address=127.0.0.1", f"--secure-port={port}"]
    api += ["--advertise-address=127.0.0.1", f"--cert-dir={folder}/certificates", "--authorization-mode=RBAC"]
    api += ["--service-cluster-ip-range=10.96.0.0/16", f"--token-auth-file={folder}/tokens.csv"]
    api += ["--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}"]
    api += [f"--service-account-signing-key-file={key}", "--allow-privileged=true", "--anonymous-auth=true"]
    api += ["--disable-admission-plugins=ServiceAccount"]  # no controller makes the accounts
    return ApiServer(f"https://127.0.0.1:{port}", folder, commands={"etcd": etcd, "kube-apiserver": api})


def _install(server: ApiServer, crds: list[Object]) -> None:
    """KubeRay's CRDs, by the same apply that everything else uses; then wait until they are served."""
    cluster = server.cluster()
    for crd in crds:
        cluster.apply(crd)
    deadline = time.monotonic() + START_S
    while True:
        try:
            cluster.list("RayJob")
            cluster.list("RayCluster")
            return
        except WarpbeamError:  # not served yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ready(url: str) -> bool:
    context = ssl._create_unverified_context()
    request = urllib.request.Request(f"{url}/readyz", headers={"Authorization": "Bearer admin-token"})
    try:
        with urllib.request.urlopen(request, context=context, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
