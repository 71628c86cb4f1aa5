"""An S3 server whose answers a test writes down: for what a good server never does.

Objects live in a dict. `script` holds, for each method, what to do to its next requests; without an entry the server
behaves. `hook` sees each request before it is answered. It checks no signature.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Fault = Literal[
    "behave",
    "lose_answer",
    "cut_body",
    "conflict",
    "stall",  # a GET's answer, or a PUT's body that is not read
    "silence",  # a PUT's body is read, and no answer comes
    "reset",
    "slow",  # the body is read at 4 MB/s
    "unavailable",
    "forget",  # a PUT's object or a completed upload, which looks as if it never was
    "truncate",  # the completed object is a byte short
]
NONCE = "x-amz-meta-warpbeam-upload"


class ScriptedS3:
    """Use as a context manager; `url` is its endpoint."""

    def __init__(self, *, honours_conditions: bool = True) -> None:
        self.honours_conditions = honours_conditions
        self.objects: dict[str, bytes] = {}
        self.script: dict[str, deque[Fault]] = defaultdict(deque)
        self.requests: list[str] = []
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.nonces: dict[str, str] = {}
        """Of an object by its path, of an unfinished upload by its name."""
        self.hook: Callable[[str], None] = lambda request: None
        self.release = threading.Event()
        handler = type("Handler", (_Handler,), {"s3": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ScriptedS3:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    s3: ScriptedS3
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_PUT(self) -> None:
        fault = self._begin()
        if fault == "stall":
            self.s3.release.wait(30)
        if fault in ("stall", "reset"):
            self._lose()
            return
        body = self._body(slow=fault == "slow")
        if fault == "silence":
            self.s3.release.wait(30)
            self._lose()
        elif fault == "unavailable":
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
        elif self.query:
            self._put_part(body, lost=fault == "lose_answer")
        else:
            self._put(body, fault)

    def _put_part(self, body: bytes, *, lost: bool) -> None:
        parts = self.s3.uploads.get(self.query["uploadId"])
        if parts is None:
            self._answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")
            return
        parts[int(self.query["partNumber"])] = body
        self._lose() if lost else self._answer(200, b"", ETag=_etag(body))

    def do_POST(self) -> None:
        fault = self._begin()
        self._body()
        if "uploads" in self.query:
            name = f"upload-{len(self.s3.requests)}"
            self.s3.uploads[name] = {}
            self.s3.nonces[name] = self.headers.get(NONCE, "")
            self._answer(200, f"<R><UploadId>{name}</UploadId></R>".encode())
            return
        parts = None if fault == "forget" else self.s3.uploads.pop(self.query["uploadId"], None)
        if parts is None:
            self._answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")
            return
        data = b"".join(parts[number] for number in sorted(parts))
        self.s3.nonces[self.key] = self.s3.nonces[self.query["uploadId"]]
        self.s3.objects[self.key] = data[:-1] if fault == "truncate" else data
        self._lose() if fault == "lose_answer" else self._answer(200, b"<R><ETag>x</ETag></R>")

    def do_DELETE(self) -> None:
        self._begin()
        found = self.s3.uploads.pop(self.query.get("uploadId", ""), None)
        self._answer(404, b"<Error><Code>NoSuchUpload</Code></Error>") if found is None else self._answer(204, b"")

    def _put(self, body: bytes, fault: Fault | None) -> None:
        self.s3.nonces[self.path] = self.headers.get(NONCE, "")
        taken = self.path in self.s3.objects
        if fault == "conflict":
            self._answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
        elif taken and self.s3.honours_conditions and self.headers.get("If-None-Match") == "*":
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            if fault != "forget":
                self.s3.objects[self.path] = body
            self._lose() if fault == "lose_answer" else self._answer(200, b"", ETag=_etag(body))

    def do_GET(self) -> None:
        fault = self._begin()
        data = self.s3.objects.get(self.path)
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        if fault == "stall":
            self.s3.release.wait(30)
            self._lose()
            return
        if "If-Match" in self.headers and self.headers["If-Match"] != _etag(data):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        status, found = 200, re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found:
            status, data = 206, data[int(found[1]) : int(found[2]) + 1 if found[2] else None]
        self._answer(status, data, cut=fault == "cut_body", ETag=_etag(data))

    def do_HEAD(self) -> None:
        self._begin()
        data = self.s3.objects.get(self.path)
        if data is None:
            self._answer(404, b"")
        else:
            self._answer(200, data, ETag=_etag(data), **{NONCE: self.s3.nonces.get(self.path, "")})

    def _begin(self) -> Fault | None:
        self.s3.requests.append(f"{self.command} {self.path}")
        self.s3.hook(self.s3.requests[-1])
        self.key = urlsplit(self.path).path
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        self.query = {name: values[0] for name, values in query.items() if name != "x-id"}
        waiting = self.s3.script[self.command]
        return waiting.popleft() if waiting else None

    def _body(self, *, slow: bool = False) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            pass  # http.server has answered it already
        size = int(self.headers["Content-Length"])
        if slow:
            pieces = []
            while size:
                pieces.append(self.rfile.read(min(size, 400_000)))
                size -= len(pieces[-1])
                time.sleep(0.1)
            return b"".join(pieces)
        raw = self.rfile.read(size)
        if self.headers.get("Content-Encoding") != "aws-chunked":
            return raw
        length, _, rest = raw.partition(b"\r\n")
        return rest[: int(length.split(b";")[0], 16)]

    def _answer(self, status: int, body: bytes, cut: bool = False, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self._lose()

    def _lose(self) -> None:
        self.close_connection = True


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'
