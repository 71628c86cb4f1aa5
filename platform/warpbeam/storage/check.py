"""Ask a store, before anything is spent, whether it will do: seconds, and one clear error for each way it will not.

Missing or wrong credentials, a missing bucket and an unreachable endpoint would otherwise show up minutes later, in
the middle of a preparation. A store that ignores `If-None-Match` would show up as two writers of one checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable
from pathlib import Path

from warpbeam.errors import InfraError, PlatformError
from warpbeam.storage.config import StorageConfig, local_path
from warpbeam.storage.connect import open_store
from warpbeam.storage.store import ObjectMissing, ObjectStore, StoreSetupError

PROBE_KEY = "probe/create-if-absent.json"
"""Stays in the store (a few bytes): rights to delete are not needed to check the rest."""


def check_store(config: StorageConfig) -> None:
    """Write, read and create-if-absent in the store.

    An embedded server is started when it does not run.

    Raises:
        StoreSetupError: no_credentials, credentials_rejected, access_denied, bucket_missing, store_unreachable,
            store_tls, wrong_region, no_conditional_put, store_refused, no_permission, bad_storage (its `reason`).
        PlatformError, InfraError: a full disk, a store that fails, an embedded server that cannot start.
    """
    _ask(config, _check_create_if_absent)


def check_reachable(config: StorageConfig) -> None:
    """One question to the store, for a command that only reads. Raises as `check_store`."""
    _ask(config, _read_probe)


def _ask(config: StorageConfig, question: Callable[[ObjectStore], object]) -> None:
    """Ask with little patience; what whoever wrote the address can mend is a StoreSetupError."""
    if config.kind == "local":
        _check_folder(local_path(config.uri))
        store = open_store(config)
    else:
        from warpbeam.storage.s3 import S3Store
        from warpbeam.storage.s3_client import PROBE_SETTINGS

        store = S3Store(config, PROBE_SETTINGS)
    try:
        question(store)
    except ObjectMissing as error:
        raise StoreSetupError(
            f"the store {store.uri} does not keep what it is given",
            why="it accepted an object and did not have it a moment later",
            fix="check that endpoint_url in the pool's `storage:` is an S3 server's address",
            reason="store_refused",
        ) from error
    except (InfraError, PlatformError) as error:
        if error.reason not in ("store_unreachable", "no_permission"):
            raise
        # nothing was spent yet, and whoever wrote the address can mend it: bad input, not a broken machine
        raise StoreSetupError(error.what, why=error.why, fix=error.fix, reason=error.reason) from error


def _read_probe(store: ObjectStore) -> None:
    """By a GET: the answer to a HEAD has no body, so it cannot say what is wrong with a signature."""
    with contextlib.suppress(ObjectMissing):
        store.get(PROBE_KEY, 0, 1)


def _check_create_if_absent(store: ObjectStore) -> None:
    """Two conditional writes of one key: the second must lose, and must not overwrite."""
    data = json.dumps({"schema": "warpbeam/probe/v1", "nonce": secrets.token_hex(8)}).encode()
    store.put_if_absent(PROBE_KEY, data)
    first = store.get(PROBE_KEY)
    created_again = store.put_if_absent(PROBE_KEY, data + b"\n")
    if created_again or store.get(PROBE_KEY) != first:
        raise StoreSetupError(
            f"the store {store.uri} has no conditional writes",
            why="it overwrote an object although the request had `If-None-Match: *`; two attempts of one run could "
            "then both believe that they own its checkpoints",
            fix="use a store that has them (AWS S3, Cloudflare R2, SeaweedFS, a recent MinIO or Ceph)",
            reason="no_conditional_put",
        )


def _check_folder(folder: Path) -> None:
    """A local store's folder is made by its first write; a file in its place is a mistake to name."""
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise StoreSetupError(
                f"{folder} cannot be a local store",
                why=f"{path} is not a folder",
                fix="name another folder in the pool's `storage:`",
                reason="bad_storage",
            )
