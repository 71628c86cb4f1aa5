"""Disk and store of one machine: a file of 100 MB is written, sent, fetched back and compared, by the code that keeps
checkpoints."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from warpbeam.errors import WarpbeamError
from warpbeam.storage.config import StorageConfig
from warpbeam.storage.connect import open_store
from warpbeam.storage.layout import preflight_key
from warpbeam.storage.store import ObjectStore

PIECE: Final = 1 << 20
FILE_BYTES: Final = 100_000_000


def measure(folder: str, store: Mapping[str, Any] | None, pool: str, size_bytes: int = FILE_BYTES) -> dict[str, Any]:
    """Bytes/s by `disk` and `store`, `write` and `read`; `error` where one failed. Nothing stays behind.

    Args:
        folder: on the disk to be measured; made where it is missing.
        store: its address (`StorageConfig.to_dict`); None leaves it out.
    """
    place = Path(folder)
    new = not place.exists()
    own = place / f"preflight-{secrets.token_hex(6)}"
    answer: dict[str, Any] = {"disk": {"error": ""}, "store": None}
    try:
        own.mkdir(parents=True)
        digest = _disk(own / "data", size_bytes, answer["disk"])
        if store is not None:
            answer["store"] = {"error": ""}
            _store(open_store(StorageConfig.from_dict(dict(store))), own, pool, digest, answer["store"])
    except OSError as error:
        answer["disk"]["error"] = f"{place}: {error.strerror or error}"
    finally:
        shutil.rmtree(place if new else own, ignore_errors=True)
    return answer


def _disk(path: Path, size_bytes: int, answer: dict[str, Any]) -> str:
    """Write to the disk itself, and read what the page cache has let go; returns the content's sha256."""
    pieces = [secrets.token_bytes(PIECE) for _ in range(8)]
    digest = hashlib.sha256()
    began, spent = time.perf_counter(), 0.0
    with path.open("wb", buffering=0) as file:
        written = 0
        while written < size_bytes:
            piece = pieces[(written // PIECE) % len(pieces)][: size_bytes - written]
            written += file.write(piece)
            hashing = time.perf_counter()
            digest.update(piece)
            spent += time.perf_counter() - hashing
        os.fsync(file.fileno())
    answer["write"] = size_bytes / (time.perf_counter() - began - spent)
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        while file.read(PIECE):
            pass
        answer["read"] = size_bytes / (time.perf_counter() - began)
    return digest.hexdigest()


def _store(store: ObjectStore, own: Path, pool: str, digest: str, answer: dict[str, Any]) -> None:
    key = preflight_key(pool, own.name)
    size_bytes = (own / "data").stat().st_size
    try:
        began = time.perf_counter()
        store.upload(own / "data", key)
        answer["write"] = size_bytes / (time.perf_counter() - began)
        try:
            began = time.perf_counter()
            found = store.download(key, own / "back", hashed=True)
            answer["read"] = size_bytes / (time.perf_counter() - began)
        finally:
            store.delete(key)
        if found != digest:
            answer["error"] = "what came back is not what was sent"
    except WarpbeamError as error:
        answer["error"] = error.what + (f": {error.why}" if error.why else "")
