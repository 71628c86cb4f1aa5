"""Certificates, tokens and kubeconfigs: who may speak to whom. Made anew for each laboratory, good for two days."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.kube.lab.layout import API, API_PORT, KUBERNETES_SERVICE, Place, node_address, node_name

ADMIN = "admin"
MASTERS = "system:masters"
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_DAYS = ("-days", "2")
_SERVICE = "kubernetes.default.svc"


def make_keys(place: Place, nodes: int) -> None:
    """Everything that the parts want to find."""
    keys = place.keys
    keys.mkdir(parents=True, mode=0o700)
    _openssl("req", "-x509", *_CURVE, *_DAYS, "-keyout", keys / "ca.key", "-out", keys / "ca.crt", "-subj", "/CN=lab")
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", keys / "accounts.key")
    _openssl("ec", "-in", keys / "accounts.key", "-pubout", "-out", keys / "accounts.pub")
    names = [f"DNS:{name}" for name in ("localhost", "kubernetes", "kubernetes.default", _SERVICE)]
    names += [f"DNS:{_SERVICE}.cluster.local", *(f"IP:{ip}" for ip in (API, KUBERNETES_SERVICE, "127.0.0.1"))]
    _certificate(keys, "apiserver", "/CN=kube-apiserver", names)
    _certificate(keys, "kubelet-client", f"/O={MASTERS}/CN=apiserver", [])
    users = {
        ADMIN: (ADMIN, MASTERS),
        "dns": ("dns", MASTERS),
        "controller-manager": ("system:kube-controller-manager", ""),
        "scheduler": ("system:kube-scheduler", ""),
        "proxy": ("system:kube-proxy", ""),
    }
    for number in range(1, nodes + 1):
        name = node_name(number)
        _certificate(
            keys, name, f"/O=system:nodes/CN=system:node:{name}", [f"DNS:{name}", f"IP:{node_address(number)}"]
        )
        users[name] = (f"system:node:{name}", "system:nodes")
    _tokens(place, users)


def _tokens(place: Place, users: dict[str, tuple[str, str]]) -> None:
    """A line and a kubeconfig for each user: file -> (name, group)."""
    lines = []
    for number, (file, (user, group)) in enumerate(users.items()):
        token = secrets.token_hex(16)
        lines.append(f"{token},{user},{number}" + (f',"{group}"' if group else ""))
        content = kubeconfig(f"https://{API}:{API_PORT}", place.keys / "ca.crt", token)
        place.write(place.kubeconfig(file), json.dumps(content), 0o600)
    place.write("keys/tokens.csv", "\n".join(lines) + "\n", 0o600)


def kubeconfig(server: str, ca: Path, token: str) -> dict[str, Any]:
    """One user on one cluster. JSON is YAML."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority": str(ca)}}],
        "users": [{"name": "lab", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
    }


def token_of(path: Path) -> str:
    """The token in one of our kubeconfigs."""
    token: str = json.loads(path.read_text())["users"][0]["user"]["token"]
    return token


def _certificate(keys: Path, name: str, subject: str, names: Iterable[str]) -> None:
    request, extension = keys / f"{name}.csr", keys / f"{name}.ext"
    also = ",".join(names)
    extension.write_text(f"subjectAltName={also}\n" if also else "basicConstraints=CA:FALSE\n")
    _openssl("req", *_CURVE, "-keyout", keys / f"{name}.key", "-out", request, "-subj", subject)
    signer = ("-CA", keys / "ca.crt", "-CAkey", keys / "ca.key", "-CAcreateserial")
    _openssl("x509", "-req", "-in", request, *signer, *_DAYS, "-extfile", extension, "-out", keys / f"{name}.crt")


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
