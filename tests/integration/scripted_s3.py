"""An S3 server whose answers a test writes down: for what a good server never does.

Objects live in a dict. `script` holds, for each method, what to do to its next requests; without an entry the server
behaves. It checks no signature.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Fault = Literal["lose_answer", "cut_body", "conflict", "stall", "forget"]


class ScriptedS3:
    """Use as a context manager; `url` is its endpoint."""

    def __init__(self, *, honours_conditions: bool = True) -> None:
        self.honours_conditions = honours_conditions
        self.objects: dict[str, bytes] = {}
        self.script: dict[str, deque[Fault]] = defaultdict(deque)
        self.requests: list[str] = []
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
        body = self._body()
        fault = self._begin()
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
            self._answer(200, data, ETag=_etag(data))

    def _begin(self) -> Fault | None:
        self.s3.requests.append(f"{self.command} {self.path}")
        waiting = self.s3.script[self.command]
        return waiting.popleft() if waiting else None

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            pass  # http.server has answered it already
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") != "aws-chunked":
            return raw
        size, _, rest = raw.partition(b"\r\n")
        return rest[: int(size.split(b";")[0], 16)]

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
