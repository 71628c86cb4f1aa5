"""Reading an object of an S3 server by ranges: bytes, a stream, or straight into a file from several threads.

boto retries a request, but not a body that breaks while it is read, and its downloads trust that an object does not
change between two ranges. Here every range after the first question is pinned to the object's ETag, and a broken
body is asked for again from where it broke.
"""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from botocore import exceptions as boto_errors
from urllib3.exceptions import HTTPError

from warpbeam.errors import InfraError
from warpbeam.storage.parts import Part, cut
from warpbeam.storage.s3_errors import error_code, status_code

if TYPE_CHECKING:
    from hashlib import _Hash

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

T = TypeVar("T")
RANGES_AT_ONCE = 8
"""Of one download, each with a block of memory and a connection."""
TRIES = 5
"""Of a body that breaks without giving a single byte more."""
BLOCK_BYTES = 256 << 10
"""Read from the socket and written, or read for a digest, at once. Linux gives a large write large pages, and where its
memory is in pieces looks for them: writes of 1 MiB took up to six times the processor time of these (measured)."""
_BROKEN_BODY = (
    boto_errors.IncompleteReadError,
    boto_errors.ReadTimeoutError,
    boto_errors.ResponseStreamingError,
    boto_errors.ConnectionClosedError,
    HTTPError,
    ConnectionError,
)


class Call(Protocol):
    """Runs one operation with a client that works, with the store's errors translated."""

    def __call__(self, operation: Callable[[S3Client], T], /) -> T: ...


@dataclass(frozen=True)
class S3Object:
    """An object to read; with `etag`, that version of it or an error."""

    call: Call
    bucket: str
    key: str
    etag: str | None = None

    def read(self, start: int, length: int | None) -> bytes:
        """Bytes [start, start + length), or to the end; cut at the object's end like a slice.

        Raises:
            ObjectMissing: there is no such object.
            InfraError: it changed (`object_changed`), or its body broke TRIES times (`store_unreachable`).
        """
        for attempt in range(TRIES):
            try:
                return self.call(lambda client: self._body(client, start, length))
            except _BodyBroken as broken:
                self._pause(attempt, broken)
        raise AssertionError("unreachable")

    def pour(self, part: Part, descriptor: int) -> None:
        """Write this part at its own place into a file; memory is BLOCK_BYTES. Raises as `read` does."""
        at, end, attempt = part.start, part.start + part.size, 0
        while at < end:
            try:
                at = self.call(lambda client, at=at: self._poured(client, at, end, descriptor))  # type: ignore[misc]
            except _BodyBroken as broken:
                attempt = 0 if broken.at > at else attempt
                self._pause(attempt, broken)
                at, attempt = broken.at, attempt + 1

    def _body(self, client: S3Client, start: int, length: int | None) -> bytes:
        end = None if length is None else start + length
        answer = self._get(client, start, end)
        if answer is None:
            return b""
        try:
            with answer["Body"] as body:
                return body.read()
        except _BROKEN_BODY as error:
            raise _BodyBroken(start) from error

    def _poured(self, client: S3Client, at: int, end: int, descriptor: int) -> int:
        answer = self._get(client, at, end)
        if answer is None or answer["ContentLength"] != end - at:
            length = 0 if answer is None else answer["ContentLength"]
            raise self._wrong_size(f"asked for {end - at} bytes at {at}, the store sends {length}")
        body, buffer = answer["Body"], memoryview(bytearray(min(BLOCK_BYTES, end - at)))
        try:
            while count := body.readinto(buffer):  # type: ignore[arg-type]
                write_all(descriptor, buffer[:count], at)
                at += count
        except _BROKEN_BODY as error:
            raise _BodyBroken(at) from error
        finally:
            body.close()
        return at

    def _get(self, client: S3Client, start: int, end: int | None) -> GetObjectOutputTypeDef | None:
        """The answer, its body not read yet; None when the range begins past the end."""
        where: dict[str, Any] = {"Bucket": self.bucket, "Key": self.key}
        if start or end is not None:
            where["Range"] = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"
        if self.etag is not None:
            where["IfMatch"] = f'"{self.etag}"'
        try:
            return client.get_object(**where)
        except boto_errors.ClientError as error:
            if error_code(error) == "InvalidRange" or status_code(error) == 416:
                return None
            if status_code(error) == 412:
                raise InfraError(
                    f"{self._name} changed while it was read",
                    fix="leave input files alone while a command reads them, and run it again",
                    reason="object_changed",
                ) from error
            raise

    def _pause(self, attempt: int, broken: _BodyBroken) -> None:
        if attempt >= TRIES - 1:
            raise InfraError(
                f"the answer of the store broke {TRIES} times while reading {self._name}",
                why=str(broken.__cause__),
                reason="store_unreachable",
            ) from broken
        time.sleep(random.random() * 2**attempt * 0.2)

    def _wrong_size(self, why: str) -> InfraError:
        return InfraError(
            f"{self._name} came with the wrong size",
            why=why,
            fix="the object changed meanwhile, or the store lost data: run the command again",
            reason="size_mismatch",
        )

    @property
    def _name(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def download(source: S3Object, size: int, descriptor: int, digest: _Hash | None = None) -> None:
    """Fetch an object of `size` bytes into an empty file, RANGES_AT_ONCE of it at a time; memory is as many blocks.

    `digest` is fed all of it, in order, while later ranges are on their way.
    """
    parts = cut(size)
    with ThreadPoolExecutor(RANGES_AT_ONCE, thread_name_prefix="warpbeam-range") as pool:
        arriving = [pool.submit(source.pour, part, descriptor) for part in parts]
        try:
            for part, arrived in zip(parts, arriving, strict=True):
                arrived.result()
                if digest is not None:
                    _digest(digest, part, descriptor)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def write_all(descriptor: int, data: memoryview, at: int) -> None:
    """Write at this offset; a write that the system cuts short is continued."""
    while data:
        count = os.pwrite(descriptor, data, at)
        data, at = data[count:], at + count


def _digest(digest: _Hash, part: Part, descriptor: int) -> None:
    """Feed what was just written, from the system's memory."""
    buffer = memoryview(bytearray(min(BLOCK_BYTES, part.size)))
    at, end = part.start, part.start + part.size
    while at < end:
        count = os.preadv(descriptor, [buffer[: end - at]], at)
        digest.update(buffer[:count])
        at += count


class RangedReader(io.RawIOBase):
    """One object, read by a ranged GET after another, so that a slow reader holds no connection open."""

    def __init__(self, source: S3Object, size: int) -> None:
        self._source, self._size = source, size
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._offset)
        if length <= 0:
            return 0
        data = self._source.read(self._offset, length)
        view[: len(data)] = data
        self._offset += len(data)
        return len(data)


class _BodyBroken(Exception):
    """The answer began but its body did not arrive whole; `at` is the first byte that is missing."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at
