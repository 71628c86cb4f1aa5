"""Objects in a bucket of any S3 server, through boto3.

Boto retries what is safe to retry; this adds what it leaves out: transfers of our own (s3_upload.py, s3_read.py), the
two answers to a conditional PUT that lost, sizes verified after a transfer, and a server on this machine that has died.
"""

from __future__ import annotations

import hashlib
import io
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from botocore import exceptions as boto_errors

from warpbeam.errors import InfraError, WarpbeamError
from warpbeam.storage.bandwidth import Bandwidth
from warpbeam.storage.config import StorageConfig, split_s3_uri
from warpbeam.storage.disk import disk_errors, replacing
from warpbeam.storage.keys import check_key, check_prefix, join_key
from warpbeam.storage.s3_client import DEFAULT_SETTINGS, ClientSettings, forget_client, s3_client
from warpbeam.storage.s3_errors import (
    S3_ERRORS,
    UNREACHABLE,
    error_code,
    is_missing,
    status_code,
    translate,
    underlying,
)
from warpbeam.storage.s3_read import RangedReader, S3Object, download
from warpbeam.storage.s3_upload import NONCE, FileParts, Upload
from warpbeam.storage.store import Names, ObjectInfo, ObjectMissing, Unfinished

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

SMALL_BYTES = 1 << 20
"""Up to here bytes are put in one request that asks nothing first and is not looked at afterwards."""
STREAM_BYTES = 8 << 20
"""One ranged GET of `open_stream`."""
_CONFLICT_TRIES = 8


class S3Store:
    """Objects below `config.uri`. Holds the address only: a pickled or forked store finds its own credentials."""

    def __init__(self, config: StorageConfig, settings: ClientSettings = DEFAULT_SETTINGS) -> None:
        self.config = config
        self.settings = settings
        self.uri = config.uri
        self._bucket, self._prefix = split_s3_uri(config.uri)

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r}, endpoint_url={self.config.endpoint_url!r})"

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See ObjectStore."""
        if start < 0 or (length is not None and length < 0):
            raise ValueError(f"get({key!r}): start and length must not be negative, got {start} and {length}")
        if length == 0:
            self._known(key)
            return b""
        return self._object(key).read(start, length)

    def put(self, key: str, data: bytes) -> None:
        """See ObjectStore."""
        if len(data) > SMALL_BYTES:
            view = memoryview(data)
            self._send(
                key,
                Upload(
                    bucket=self._bucket,
                    key=self._full(key),
                    size=len(data),
                    read=lambda part: view[part.start : part.start + part.size],
                ),
            )
            return
        self._call(key, lambda client: client.put_object(Bucket=self._bucket, Key=self._full(key), Body=data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See ObjectStore."""
        full = self._full(key)
        for attempt in range(_CONFLICT_TRIES):
            created = self._call(key, lambda client: _create(client, self._bucket, full, data))
            if created is not None:
                return created
            time.sleep(random.random() * min(2.0, 0.05 * 2**attempt))  # 409: another writer is between start and end
        if self.head(key) is not None:
            return False
        raise InfraError(
            f"cannot create {self._where(key)}",
            why=f"the store reported a conflicting write {_CONFLICT_TRIES} times, but there is no object",
            reason="store_failed",
        )

    def upload(
        self, path: Path, key: str, *, limit: Bandwidth | None = None, cancel: threading.Event | None = None
    ) -> None:
        """See ObjectStore. Memory is THREADS parts of PART_BYTES; larger parts only beyond MAX_PARTS of them."""
        with disk_errors(path), path.open("rb") as file:
            parts = FileParts(file, path)
            upload = Upload(
                bucket=self._bucket,
                key=self._full(key),
                size=parts.size,
                read=parts.read,
                limit=limit,
                cancel=cancel,
            )
            self._send(key, upload)
            parts.check()

    def download(self, key: str, path: Path, *, hashed: bool = False) -> str:
        """See ObjectStore. Memory is RANGES_AT_ONCE blocks of BLOCK_BYTES."""
        digest = hashlib.sha256() if hashed else None
        info = self._known(key)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temp:
                with temp.open("xb+") as file:
                    download(self._object(key, info.etag), info.size, file.fileno(), digest)
                self._check_size(key, expected=info.size, found=temp.stat().st_size)
        return "" if digest is None else digest.hexdigest()

    def head(self, key: str) -> ObjectInfo | None:
        """See ObjectStore."""
        full = self._full(key)

        def ask(client: S3Client) -> ObjectInfo | None:
            try:
                answer = client.head_object(Bucket=self._bucket, Key=full)
            except boto_errors.ClientError as error:
                if is_missing(error):
                    return None
                raise
            age_s = _age_s(answer, answer["LastModified"])
            return ObjectInfo(key, answer["ContentLength"], answer["ETag"].strip('"'), age_s)

        return self._call(key, ask)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore. Servers differ in their order (SeaweedFS: by folder), so the whole listing is sorted."""
        full = self._full_prefix(prefix)
        cut = len(self._prefix) + 1 if self._prefix else 0

        def ask(client: S3Client) -> list[ObjectInfo]:
            found: list[ObjectInfo] = []
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=full):
                for item in page.get("Contents", []):
                    age_s = _age_s(page, item["LastModified"])
                    found.append(ObjectInfo(item["Key"][cut:], item["Size"], item["ETag"].strip('"'), age_s))
            return found

        yield from sorted(self._call(prefix, ask), key=lambda info: info.key)

    def list_dirs(self, prefix: str) -> Names:
        """See ObjectStore."""
        folder = self._full_prefix(prefix.removesuffix("/") + "/" if prefix else "")

        def ask(client: S3Client) -> set[str]:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=folder, Delimiter="/")
            found = (item["Prefix"] for page in pages for item in page.get("CommonPrefixes", []))
            return {name[len(folder) :].rstrip("/") for name in found}

        return sorted(self._call(prefix, ask) - {""})

    def delete(self, key: str) -> None:
        """See ObjectStore."""
        full = self._full(key)

        def remove(client: S3Client) -> None:
            try:
                client.delete_object(Bucket=self._bucket, Key=full)
            except boto_errors.ClientError as error:
                if not is_missing(error):
                    raise

        self._call(key, remove)

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        """See ObjectStore. The server's own list of multipart uploads."""
        folder = self._full_prefix(prefix.removesuffix("/") + "/" if prefix else "")
        cut_off = len(self._prefix) + 1 if self._prefix else 0

        def ask(client: S3Client) -> list[Unfinished]:
            found: list[Unfinished] = []
            for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=folder):
                for item in page.get("Uploads", []):
                    age_s = _age_s(page, item["Initiated"])
                    found.append(Unfinished(item["Key"][cut_off:], item["UploadId"], age_s))
            return found

        yield from self._call(prefix, ask)

    def discard(self, left: Unfinished) -> None:
        """See ObjectStore."""
        full = self._full(left.key)

        def abort(client: S3Client) -> None:
            try:
                client.abort_multipart_upload(Bucket=self._bucket, Key=full, UploadId=left.id)
            except boto_errors.ClientError as error:
                if error_code(error) != "NoSuchUpload":  # it has ended meanwhile, well or badly
                    raise

        self._call(left.key, abort)

    def open_stream(self, key: str) -> BinaryIO:
        """See ObjectStore. Ranged GETs, so that a slow reader holds no connection open and none can break it."""
        info = self._known(key)
        reader = RangedReader(self._object(key, info.etag), info.size)
        return cast(BinaryIO, io.BufferedReader(reader, STREAM_BYTES))

    def _object(self, key: str, etag: str | None = None) -> S3Object:
        return S3Object(lambda operation: self._call(key, operation), self._bucket, self._full(key), etag)

    def _known(self, key: str) -> ObjectInfo:
        info = self.head(key)
        if info is None:
            raise ObjectMissing(f"there is no {self._where(key)}")
        return info

    def _send(self, key: str, upload: Upload) -> None:
        self._call(key, upload.send)

        def look(client: S3Client) -> int | None:
            try:
                answer = client.head_object(Bucket=self._bucket, Key=upload.key)
            except boto_errors.ClientError as error:
                if is_missing(error):
                    return None
                raise
            return answer["ContentLength"] if answer["Metadata"].get(NONCE) == upload.nonce else None

        self._check_size(key, expected=upload.size, found=self._call(key, look))

    def _check_size(self, key: str, *, expected: int, found: int | None) -> None:
        if found != expected:
            raise InfraError(
                f"{self._where(key)} was transferred with the wrong size",
                why=f"expected {expected} bytes, found {'none' if found is None else found}",
                fix="the file or object changed meanwhile, or the store lost data: run the command again",
                reason="size_mismatch",
            )

    def _call(self, key: str, operation: Callable[[S3Client], T]) -> T:
        """Run one operation; again when the machine's own server had to be revived for it."""
        for last in (False, False, True):
            try:
                return operation(s3_client(self.config, self.settings))
            except S3_ERRORS as error:
                if not last and self.config.kind == "embedded" and isinstance(underlying(error), UNREACHABLE):
                    forget_client(self.config)  # the next client starts the server again, on the same data
                    continue
                raise self._explained(error, key) from error
        raise AssertionError("unreachable")

    def _explained(self, error: BaseException, key: str) -> WarpbeamError:
        ours = translate(error, uri=self._where(key), endpoint_url=self.config.endpoint_url)
        if self.config.kind == "embedded" and ours.reason == "store_failed":
            from warpbeam.storage.embedded import disk_full, home

            return disk_full(home()) or ours
        if self.config.kind == "embedded" and ours.reason == "bucket_missing":
            ours.fix = (
                "the pool's store is this machine's embedded server, which has the bucket `warpbeam` only: for a "
                "bucket elsewhere, name its server in the pool's `storage:` (kind: s3)"
            )
        return ours

    def _full(self, key: str) -> str:
        return join_key(self._prefix, check_key(key))

    def _full_prefix(self, prefix: str) -> str:
        check_prefix(prefix)
        return f"{self._prefix}/{prefix}" if self._prefix else prefix

    def _where(self, key: str) -> str:
        return f"{self.uri}/{key}" if key else self.uri


def _create(client: S3Client, bucket: str, key: str, data: bytes) -> bool | None:
    """True: created; False: something is there; None: ask again (a concurrent write has not ended)."""
    try:
        client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
    except boto_errors.ClientError as error:
        if status_code(error) == 412 or error_code(error) == "PreconditionFailed":
            return False
        if status_code(error) == 409 and error_code(error) in ("ConditionalRequestConflict", "OperationAborted", "409"):
            return None
        raise
    return True


def _age_s(answer: Any, modified: datetime) -> float:
    """Seconds since `modified` by the clock of the server that answered."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    now = parsedate_to_datetime(date) if date else datetime.now(UTC)
    return max(0.0, (now - modified).total_seconds())
