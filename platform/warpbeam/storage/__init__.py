"""Object storage: one small interface over S3 and a local folder, and the S3 server of a laptop."""

from __future__ import annotations

from warpbeam.storage.config import StorageConfig
from warpbeam.storage.connect import config_for, open_store, open_uri
from warpbeam.storage.store import ObjectInfo, ObjectMissing, ObjectStore, StoreSetupError

__all__ = [
    "ObjectInfo",
    "ObjectMissing",
    "ObjectStore",
    "StorageConfig",
    "StoreSetupError",
    "config_for",
    "open_store",
    "open_uri",
]
