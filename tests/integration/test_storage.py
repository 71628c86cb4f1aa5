from __future__ import annotations

from warpbeam.storage import StorageConfig, open_store


def test_smoke(s3: StorageConfig) -> None:
    store = open_store(s3)
    store.put("a", b"1")
    assert store.get("a") == b"1"
