"""From an address to a store that works, in whichever process needs it.

The only place that chooses between kinds of store. Credentials are resolved here and now; an address can therefore
travel through Ray, plans and records.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from warpbeam.errors import UserError
from warpbeam.storage.config import StorageConfig, local_path, split_s3_uri
from warpbeam.storage.store import ObjectStore


def open_store(config: StorageConfig) -> ObjectStore:
    """The store at this address.

    Nothing is asked of the store yet (`check_store` does that); the first request starts an embedded server that does
    not run, and reports missing credentials.
    """
    if config.kind == "local":
        from warpbeam.storage.local import LocalStore

        return LocalStore(local_path(config.uri))
    from warpbeam.storage.s3 import S3Store

    return S3Store(config)


def open_uri(uri: str, config: StorageConfig | None) -> tuple[ObjectStore, str]:
    """A store and the key in it for anything a person may write as a path.

    `s3://bucket/key` is reached through the pool's endpoint and credentials (`config`), or boto's own chain where the
    pool has none. A local path, `~` included, gives the file system's root as the store, and the path in it as the
    key: so a path with wildcards has the same shape in both.

    Returns:
        `(store of the bucket or of the file system, key)`; the key is as written, without a slash at the end.
    """
    if uri.startswith("s3://"):
        bucket, key = split_s3_uri(uri)
        return open_store(config_for(f"s3://{bucket}", config)), key.rstrip("/")
    path = _absolute(uri)
    root = Path(path.anchor)
    return open_store(config_for(root.as_uri(), config)), path.relative_to(root).as_posix()


def config_for(uri: str, config: StorageConfig | None) -> StorageConfig:
    """The address of another place (a job's own checkpoint store, a bucket of data) in the pool's surroundings."""
    if uri.startswith("s3://"):
        if config is None or config.kind == "local":
            return StorageConfig(uri=uri, kind="s3")
        return replace(config, uri=uri)
    return StorageConfig(uri=_absolute(uri).as_uri(), kind="local")


def _absolute(uri: str) -> Path:
    if uri.startswith("file://"):
        return local_path(uri)
    if "://" in uri:
        raise UserError(
            f"{uri!r} has an unknown scheme",
            fix="write s3://BUCKET/KEY, a local path, or (for a model) hf://OWNER/NAME",
            reason="bad_path",
        )
    # `..` is taken as written, not through links: a key must not hold it
    return Path(os.path.abspath(Path(uri).expanduser()))
