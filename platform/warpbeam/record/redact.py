"""Take the values of declared secrets out of text before it leaves the machine.

A secret can arrive cut across two reads, so the redactor holds back as many bytes as the longest secret could still
need.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

MASK = b"[secret]"
_SHORTEST = 6  # shorter values ("1", "true") would blank out ordinary text


class Redactor:
    """Streaming replacement of known byte strings; `feed` in order, `final=True` with the last piece."""

    def __init__(self, secrets: Iterable[str]) -> None:
        lines = {line.strip() for secret in secrets for line in secret.splitlines()}
        values = {line.encode() for line in lines} | {json.dumps(line)[1:-1].encode() for line in lines}
        self._values = sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True)
        self.held = b""  # the raw end of what was fed that may be the beginning of a secret

    def feed(self, data: bytes, *, final: bool = False) -> bytes:
        """The part of what was fed so far that can safely go out."""
        if not self._values:
            return data
        text = self.held + data
        for value in self._values:
            text = text.replace(value, MASK)
        hold = 0 if final else self._unfinished(text)
        self.held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def text(self, value: str) -> str:
        """Redact one whole string."""
        data = value.encode()
        for secret in self._values:
            data = data.replace(secret, MASK)
        return data.decode(errors="replace")

    def _unfinished(self, text: bytes) -> int:
        """Length of the longest end of `text` that some secret could still begin with."""
        longest = max(len(value) for value in self._values)
        for length in range(min(longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(value.startswith(end) for value in self._values):
                return length
        return 0
