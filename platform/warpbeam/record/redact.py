"""Take the values of declared secrets out of text before it leaves the machine.

A secret can arrive cut across two reads, so the redactor holds back as many bytes as the longest secret could still
need.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from warpbeam.secret_shapes import names_a_secret, redact

MASK = b"[secret]"
KEPT_NAMES: Final = (
    *("NCCL_", "GLOO_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "CUDA_", "DS_", "DEEPSPEED_", "FI_", "UCX_", "OMPI_"),
    *("OMP_", "MKL_", "RAY_ADDRESS", "MALLOC_", "GLIBC_", "WARPBEAM_", "RANK", "LOCAL_RANK", "HOSTNAME", "NODE_NAME"),
    *("LOCAL_WORLD_SIZE", "WORLD_SIZE", "NODE_RANK", "MASTER_", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PATH"),
    *("NVIDIA_", "POD_", "TMPDIR"),
)
"""How variables begin that decide how ranks run and meet. Nothing is kept of others: their names alone would lead a
doctor astray, who reads words."""
_SHORTEST_ORDINARY = 12
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


def kept_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What a post-mortem may know of a process's environment: variables that decide how ranks run and meet, but
    nothing that is named or shaped like a secret."""
    return {name: redact(value) for name, value in env.items() if _may_be_kept(name, value)}


def hidden_values(env: Mapping[str, str]) -> list[str]:
    """Values of an environment that must not appear in a post-mortem, whoever has printed them: all that
    `kept_environment` leaves out, but for paths and short words, which are part of every message."""
    hidden = []
    for name, value in env.items():
        ordinary = "/" in value or len(value) < _SHORTEST_ORDINARY
        if names_a_secret(name) or not (_may_be_kept(name, value) or ordinary):
            hidden.append(value)
    return hidden


def _may_be_kept(name: str, value: str) -> bool:
    """A value in JSON holds other variables: Ray hands a job's whole environment on in one."""
    return name.startswith(KEPT_NAMES) and not names_a_secret(name) and not value.lstrip().startswith(("{", "["))
