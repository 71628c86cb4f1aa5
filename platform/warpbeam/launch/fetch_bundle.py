"""Bring a packed working folder from the pool's store into a pod, and make sure that it is the one that was meant.

    python -m warpbeam.launch.fetch_bundle s3://bucket/prefix/teams/T/bundles/DIGEST.zip --digest DIGEST --into /bundle

The store and how it is reached come from the platform's pool file (WARPBEAM_POOL), credentials from the pod.
"""

from __future__ import annotations

import argparse
import stat
import sys
import tempfile
import zipfile
from pathlib import Path

from warpbeam.errors import InfraError, UserError, WarpbeamError
from warpbeam.launch.bundle import content_digest
from warpbeam.storage.store import ObjectMissing, ObjectStore


def fetch(store: ObjectStore, key: str, digest: str, into: Path) -> int:
    """Unpack the bundle at `key` into a folder; returns the number of files.

    Raises:
        UserError: there is none, or it holds a name that leads outside.
        InfraError: its content is not what `digest` says.
    """
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "bundle.zip"
        try:
            store.download(key, packed)
        except ObjectMissing as error:
            raise UserError(
                f"there is no bundle {key} in {store.uri}",
                fix="`warpbeam render ... --upload` puts it there",
                reason="no_bundle",
            ) from error
        with zipfile.ZipFile(packed) as archive:
            _check(archive, key, digest)
            for member in archive.infolist():
                target = Path(archive.extract(member, into))
                target.chmod(stat.S_IMODE(member.external_attr >> 16))
            return len(archive.infolist())


def _check(archive: zipfile.ZipFile, key: str, digest: str) -> None:
    for member in archive.infolist():
        parts = Path(member.filename).parts
        if member.filename.startswith("/") or ".." in parts:
            raise UserError(f"the bundle {key} holds a path that leads outside: {member.filename}", reason="bad_bundle")
    if (there := content_digest(archive)) != digest:
        raise InfraError(
            f"the bundle {key} is not what was rendered: its content is {there[:12]}, not {digest[:12]}",
            fix="render again with --upload, and apply that",
            reason="changed_bundle",
        )


def main(arguments: list[str]) -> None:
    """Fetch what the command line names."""
    from warpbeam.pool import load_pool
    from warpbeam.storage.connect import open_uri

    parser = argparse.ArgumentParser(prog="warpbeam.launch.fetch_bundle")
    parser.add_argument("uri")
    parser.add_argument("--digest", required=True)
    parser.add_argument("--into", type=Path, required=True)
    asked = parser.parse_args(arguments)
    store, key = open_uri(asked.uri, load_pool().pool.storage_config())
    count = fetch(store, key, asked.digest, asked.into)
    print(f"{count} files from {asked.uri}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except WarpbeamError as error:
        sys.exit(str(error))
