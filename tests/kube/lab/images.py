"""Container images made by hand, since there is no registry: one layer, one manifest, in an OCI archive.

The same content gives the same digest, so a pool file can name an image before a node has it.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.kube.lab.layout import REPOSITORY
from tests.kube.lab.programs import program

PAUSE = "docker.io/warpbeam/pause:lab"
RUNTIME = "docker.io/warpbeam/runtime"
USER = 1000
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_APPLETS = ("sh", "sleep", "cat", "ls", "env", "echo", "true", "false", "touch", "rm", "id", "grep")


@dataclass(frozen=True)
class Image:
    """An image as a file.

    Args:
        names: by which nodes know it.
        digest: of its manifest.
    """

    names: tuple[str, ...]
    digest: str
    archive: bytes


@dataclass(frozen=True)
class Entry:
    """One path in a layer: a folder, unless it has content or leads elsewhere."""

    path: str
    mode: int = 0o755
    content: bytes | None = None
    link: str = ""
    owner: int = 0


@cache
def pause() -> Image:
    """What holds a pod's namespaces."""
    layer = _layer([Entry("pause", content=program("pause").read_bytes())])
    return _image(layer, {"Entrypoint": ["/pause"]}, tagged=(PAUSE,))


@cache
def runtime() -> Image:
    """What pods of a run use: a root folder laid out as the machine's, so that the machine's /usr fits into it.

    By itself it has a shell and little else. The environment's programs are on its PATH, as in an image that has them.
    """
    folders = ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "root", "run", "var/tmp", "proc", "sys", "dev"]
    entries = [Entry(path) for path in folders]
    entries += [Entry("tmp", 0o1777), Entry("home"), Entry("home/warpbeam", owner=USER)]
    entries += [Entry(name, link=f"usr/{name}") for name in ("bin", "sbin", "lib", "lib64")]
    entries += [
        Entry(
            "etc/passwd",
            0o644,
            f"root:x:0:0::/root:/bin/sh\nwarpbeam:x:{USER}:{USER}::/home/warpbeam:/bin/sh\n".encode(),
        ),
        Entry("etc/group", 0o644, f"root:x:0:\nwarpbeam:x:{USER}:\n".encode()),
        Entry("etc/nsswitch.conf", 0o644, b"hosts: files dns\n"),
        Entry("usr/bin/busybox", content=Path("/bin/busybox").read_bytes()),
    ]
    entries += [Entry(f"usr/bin/{name}", link="busybox") for name in _APPLETS]
    path = f"PATH={REPOSITORY}/.venv/bin:/usr/local/bin:/usr/bin:/bin"
    return _image(_layer(entries), {"Env": [path], "User": str(USER)}, tagged=(f"{RUNTIME}:lab",), by_digest=RUNTIME)


def _layer(entries: Iterable[Entry]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.path)
            info.mode, info.uid, info.gid = entry.mode, entry.owner, entry.owner
            if entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            elif entry.content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(entry.content)
            archive.addfile(info, io.BytesIO(entry.content or b""))
    return packed.getvalue()


def _image(layer: bytes, config: dict[str, object], tagged: tuple[str, ...], by_digest: str = "") -> Image:
    kind = "application/vnd.oci.image"
    of_layer = _descriptor(f"{kind}.layer.v1.tar", layer)
    made = {
        "architecture": _ARCHITECTURE,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [of_layer["digest"]]},
    }
    config_blob = json.dumps(made, sort_keys=True).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": _descriptor(f"{kind}.config.v1+json", config_blob),
        "layers": [of_layer],
    }
    blob = json.dumps(manifest, sort_keys=True).encode()
    of_manifest = _descriptor(f"{kind}.manifest.v1+json", blob)
    names = (*tagged, f"{by_digest}@{of_manifest['digest']}") if by_digest else tagged
    found = [{**of_manifest, "annotations": {"io.containerd.image.name": name}} for name in names]
    index = json.dumps({"schemaVersion": 2, "manifests": found}).encode()
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index}
    files |= {f"blobs/sha256/{hashlib.sha256(each).hexdigest()}": each for each in (layer, config_blob, blob)}
    archive = _layer(Entry(path, 0o644, content) for path, content in files.items())
    return Image(names, str(of_manifest["digest"]), archive)


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}
