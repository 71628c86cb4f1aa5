"""The laboratory's programs, built from their Go modules once and kept outside the repository.

    python -m tests.kube.lab.programs        (make kube-lab-install)

The modules in ../modules pin every version by go.mod and go.sum; the folder of the results is named after them, so that
a moved pin builds anew and old results stay for older commits.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.kube.lab.layout import MODULES

KUBERNETES_VERSION = "v1.36.3"
_STAMP = f"-X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"
_PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
DEBIAN = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "ip": "iproute2",
    "iptables": "iptables",
    "busybox": "busybox-static",
    "openssl": "openssl",
    "nsenter": "util-linux",
}
"""What must be there -> Debian's package that has it."""


@dataclass(frozen=True)
class Program:
    """One Go module and what is built of it.

    Args:
        module: folder below ../modules.
        built: program -> its Go package.
    """

    module: str
    built: dict[str, str]
    flags: str = "-s -w"


PROGRAMS = (
    Program("pause", {"pause": "."}),
    Program("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Program("operator", {"ray-operator": "github.com/ray-project/kuberay/ray-operator"}),
    Program("kubernetes", {part: f"k8s.io/kubernetes/cmd/{part}" for part in _PARTS}, f"-s -w {_STAMP}"),
    Program("dns", {"coredns": "."}),
    Program("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Program("kueue", {"kueue": "sigs.k8s.io/kueue/cmd/kueue"}),
)


def pins() -> str:
    """Names all versions: a digest of the modules and of how they are built."""
    digest = hashlib.sha256(repr(PROGRAMS).encode())
    for path in sorted(MODULES.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(MODULES)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def built_folder() -> Path:
    """Where programs (bin/) and manifests of these pins lie, or will."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "warpbeam" / "kube-lab" / pins()


def program(name: str) -> Path:
    """A built program."""
    return built_folder() / "bin" / name


def _manifest_file(name: str) -> Path:
    return built_folder() / f"{name}.json"


def manifests(name: str) -> list[dict[str, object]]:
    """Objects that came with a module: `operator` (KubeRay's CRDs) or `kueue`."""
    found: list[dict[str, object]] = json.loads(_manifest_file(name).read_text())
    return found


def lacking_packages() -> list[str]:
    """Debian packages whose programs are not here."""
    return [package for there, package in DEBIAN.items() if shutil.which(there) is None]


def lacking() -> list[str]:
    """Why no laboratory can start here, in words; empty where one can."""
    found = []
    if os.geteuid() != 0:
        found.append("it takes root (namespaces, network, control groups)")
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        found.append("it was built for control groups v1, and this machine has v2")
    if packages := lacking_packages():
        found.append(f"packages are missing: {' '.join(packages)}")
    missing = [name for wanted in PROGRAMS for name in wanted.built if not program(name).is_file()]
    missing += [f"{name}.json" for name in ("operator", "kueue") if not _manifest_file(name).is_file()]
    if missing:
        found.append(f"not built: {', '.join(missing)} (make kube-lab-install; it takes Go)")
    return found


def install() -> None:
    """Packages from Debian, programs from Go; what is there already stays."""
    if packages := lacking_packages():
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            sys.exit(f"missing: {' '.join(packages)}; install them and run this again")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "--quiet"], ["install", "--yes", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", *words], check=True, stdin=subprocess.DEVNULL, env=environment)
    if shutil.which("go") is None:
        sys.exit("missing: Go, of the version in tests/kube/modules/kubernetes/go.mod or newer (https://go.dev/dl)")
    for wanted in PROGRAMS:
        if all(program(name).is_file() for name in wanted.built):
            continue
        began = time.monotonic()
        _build(wanted)
        print(f"{', '.join(wanted.built)}: built in {time.monotonic() - began:.0f} s", flush=True)
    for name, read in (("operator", _crds), ("kueue", _kueue)):
        if not _manifest_file(name).is_file():
            _write_manifests(name, read())
    print(f"all programs are in {built_folder()}")


def _build(wanted: Program) -> None:
    folder, target = MODULES / wanted.module, built_folder() / "bin"
    target.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "CGO_ENABLED": "0"}
    for name, package in wanted.built.items():
        half = target / f".{name}.{os.getpid()}"  # an interrupted build leaves nothing that looks finished
        command = ["go", "build", "-trimpath", "-buildvcs=false", f"-ldflags={wanted.flags}", "-o", str(half), package]
        subprocess.run(command, cwd=folder, env=environment, check=True)
        half.replace(target / name)


def _module_source(module: str, path: str) -> Path:
    """Its folder; programs that are built already do not mean that their sources are still here."""
    command = ["go", "mod", "download", "-json", path]
    done = subprocess.run(command, cwd=MODULES / module, check=True, text=True, stdout=subprocess.PIPE)
    return Path(json.loads(done.stdout)["Dir"])


def _crds() -> str:
    source = _module_source("operator", "github.com/ray-project/kuberay/ray-operator")
    return "\n---\n".join(path.read_text() for path in sorted((source / "config/crd/bases").glob("*.yaml")))


def _kueue() -> str:
    source = _module_source("kueue", "sigs.k8s.io/kueue")
    command = [str(program("kubectl")), "kustomize", str(source / "config/default")]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def _write_manifests(name: str, text: str) -> None:
    """As JSON: reading a megabyte of YAML takes longer than starting the cluster."""
    import yaml

    documents = [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
    if not documents:
        sys.exit(f"no manifests in the module of {name}: {text[:200]!r}")
    half = _manifest_file(name).with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps(documents))
    half.replace(_manifest_file(name))


if __name__ == "__main__":
    install()
