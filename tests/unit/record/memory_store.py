"""A store in a dictionary that can be told to fail: what the record's writers and readers are stepped against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from warpbeam.errors import InfraError


class Info(NamedTuple):
    key: str
    size: int
    etag: str
    age_s: float


class MemoryStore:
    uri = "memory://"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.ages: dict[str, float] = {}
        self.failures = 0
        self.puts = 0

    def put(self, key: str, data: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise InfraError("the store is away")
        self.puts += 1
        self.objects[key] = data

    def put_if_absent(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.put(key, data)
        return True

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key not in self.objects:
            from warpbeam.storage.store import ObjectMissing

            raise ObjectMissing(f"no object {key}")
        end = None if length is None else start + length
        return self.objects[key][start:end]

    def head(self, key: str) -> Info | None:
        if key not in self.objects:
            return None
        return Info(key, len(self.objects[key]), "", self.ages.get(key, 0.0))

    def list(self, prefix: str) -> Iterator[Info]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield Info(key, len(self.objects[key]), "", self.ages.get(key, 0.0))

    def list_dirs(self, prefix: str) -> list[str]:
        rest = (key[len(prefix) :] for key in self.objects if key.startswith(prefix))
        return sorted({name.split("/")[0] for name in rest if "/" in name})

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)
