"""Sending an object to an S3 server: one PUT, or our own multipart upload over boto3's client.

boto3's transfer manager can be neither slowed down nor given up, and on some machines is another program altogether
(facts section 4). Here a part is read once, gets its CRC32 from zlib, and is sent by one of a few threads; between
two parts the caller may give up and a cap may ask for patience. However an upload ends, nothing is left of it in the
store unless the process was killed: then the next attempt's sweep finds it.
"""

from __future__ import annotations

import base64
import logging
import os
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4

from botocore.exceptions import ClientError

from warpbeam.errors import InfraError
from warpbeam.storage.bandwidth import Bandwidth, wait_turn
from warpbeam.storage.parts import PART_BYTES, THREADS, Part, cut
from warpbeam.storage.s3_errors import S3_ERRORS, error_code
from warpbeam.storage.store import TransferCancelled

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SEND_BYTES = 256 << 10
"""Given to the socket at once. Its timeout counts for one such piece: a slow line is no dead one."""
NONCE = "warpbeam-upload"
"""The object's metadata that tells whose upload it came from."""
ReadPart = Callable[[Part], "bytes | memoryview"]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Upload:
    """One object on its way; memory is THREADS parts at most.

    Attributes:
        size: bytes.
        read: gives a part's bytes; called once a part, in any order, from any thread.
        limit: the cap that parts wait for.
        cancel: gives the upload up before its next part.
        nonce: stored with the object: whether what is there came from this upload can be told after a lost answer.
    """

    bucket: str
    key: str
    size: int
    read: ReadPart
    limit: Bandwidth | None = None
    cancel: threading.Event | None = None
    nonce: str = field(default_factory=lambda: uuid4().hex)

    def send(self, client: S3Client) -> None:
        """Store the object. The caller checks what is there afterwards: size and nonce.

        Raises:
            TransferCancelled: `cancel` was set.
            botocore's errors, after the client's own retries.
        """
        if self.size <= PART_BYTES:
            whole = Part(1, 0, self.size)
            self._turn(whole)
            client.put_object(Metadata={NONCE: self.nonce}, **self._where, **self._content(client, whole))
            return
        algorithm: dict[str, Any] = {"ChecksumAlgorithm": "CRC32"} if _with_checksums(client) else {}
        begun = client.create_multipart_upload(Metadata={NONCE: self.nonce}, **self._where, **algorithm)
        try:
            parts = self._send_parts(client, begun["UploadId"])
            self._complete(client, begun["UploadId"], parts)
        except BaseException:
            self._abort(client, begun["UploadId"])
            raise

    @property
    def _where(self) -> dict[str, Any]:
        return {"Bucket": self.bucket, "Key": self.key}

    def _turn(self, part: Part) -> None:
        """Wait until the cap lets this part go."""
        if not wait_turn(part.size, self.limit, self.cancel):
            raise TransferCancelled(f"the upload of s3://{self.bucket}/{self.key} was given up")

    def _send_parts(self, client: S3Client, upload: str) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        waiting: set[Future[dict[str, Any]]] = set()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="warpbeam-part") as pool:
            for part in cut(self.size):
                if len(waiting) == THREADS:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    sent += [future.result() for future in done]
                self._turn(part)
                waiting.add(pool.submit(self._send_part, client, upload, part))
            sent += [future.result() for future in waiting]
        return sorted(sent, key=lambda part: part["PartNumber"])

    def _send_part(self, client: S3Client, upload: str, part: Part) -> dict[str, Any]:
        content = self._content(client, part)
        answer = client.upload_part(UploadId=upload, PartNumber=part.number, **self._where, **content)
        checksum = {name: content[name] for name in content if name != "Body"}
        return {"PartNumber": part.number, "ETag": answer["ETag"], **checksum}

    def _content(self, client: S3Client, part: Part) -> dict[str, Any]:
        data = self.read(part)
        content: dict[str, Any] = {"Body": _Body(data)}
        if _with_checksums(client):
            content["ChecksumCRC32"] = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
        return content

    def _complete(self, client: S3Client, upload: str, parts: list[dict[str, Any]]) -> None:
        try:
            client.complete_multipart_upload(UploadId=upload, MultipartUpload={"Parts": parts}, **self._where)  # type: ignore[typeddict-item]
        except ClientError as error:
            # The client asks again when an answer is lost, and the upload of a completed one is gone. What is stored
            # now tells: the caller looks at it.
            if error_code(error) != "NoSuchUpload":
                raise

    def _abort(self, client: S3Client, upload: str) -> None:
        try:
            client.abort_multipart_upload(UploadId=upload, **self._where)
        except S3_ERRORS as error:
            if error_code(error) != "NoSuchUpload":
                where = f"s3://{self.bucket}/{self.key}"
                logger.warning("the unfinished upload of %s stays in the store until a sweep: %s", where, error)


class FileParts:
    """Reads the parts of an open file; a file that changes its size meanwhile is an error, never cut or padded."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._descriptor, self._path = file.fileno(), path
        self.size = os.fstat(self._descriptor).st_size

    def read(self, part: Part) -> bytes:
        """See ReadPart. Raises InfraError (`size_mismatch`) when the file has become shorter."""
        data = os.pread(self._descriptor, part.size, part.start)
        while len(data) < part.size:  # the system may give less than was asked for; at the end it gives nothing
            more = os.pread(self._descriptor, part.size - len(data), part.start + len(data))
            if not more:
                self.check()
                raise self._changed(part.start + len(data))
            data += more
        return data

    def check(self) -> None:
        """Raises InfraError (`size_mismatch`) when the file has another size than at first."""
        size = os.fstat(self._descriptor).st_size
        if size != self.size:
            raise self._changed(size)

    def _changed(self, size: int) -> InfraError:
        return InfraError(
            f"{self._path} changed while it was uploaded",
            why=f"it had {self.size} bytes at first, and {size} later",
            fix="leave the file alone while it is uploaded, and run the command again",
            reason="size_mismatch",
        )


class _Body:
    """Bytes as the file that boto wants for a request's body; it is asked to begin anew for a retry.

    A read gives SEND_BYTES whatever was asked for. Of plain bytes all go to the socket in one call, and the timeout of
    seconds would be for the whole part.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int = -1) -> memoryview:
        piece = self._data[self._at : self._at + SEND_BYTES]
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at


def _with_checksums(client: S3Client) -> bool:
    """Some stores (GCS) know no checksums; AWS_REQUEST_CHECKSUM_CALCULATION=when_required is how boto is told."""
    return bool(client.meta.config.request_checksum_calculation != "when_required")  # type: ignore[attr-defined]
