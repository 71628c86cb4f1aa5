"""What a person types, inside the laboratory's network: there API server and store have the addresses that pods use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kube.lab import cgroups
from tests.kube.lab.laboratory import Laboratory
from tests.kube.sft_job import Shop


@dataclass
class Command:
    """One `warpbeam ...` in a process of its own, which ends with the block.

    Args:
        folder: where it is typed: the job's.
        pool: the pool file.
    """

    lab: Laboratory
    shop: Shop
    folder: Path
    pool: Path
    words: tuple[str, ...]
    output: Path = field(init=False)
    _process: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> Self:
        self.output = self.folder.parent / f"said-{time.monotonic_ns()}"
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.lab.place.kubeconfig("admin")),
            "AWS_ACCESS_KEY_ID": self.shop.access_key,
            "AWS_SECRET_ACCESS_KEY": self.shop.secret_key,
            "WARPBEAM_POOL": str(self.pool),
        }
        warpbeam = Path(sys.executable).with_name("warpbeam")
        groups = self.lab.place.groups
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                self.lab.sandbox.command("env", "--chdir", self.folder, warpbeam, *self.words),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: cgroups.join(groups),
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def said(self) -> str:
        """All of it so far."""
        return self.output.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    def end(self, timeout_s: float) -> int:
        """Its exit code."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.said[-4000:]}") from None
