"""What a launch switches on so that a failure can be explained afterwards: one file a rank, in one folder a machine.

    rank-N.stacks.txt    every thread's stack: at a crash's signal, when somebody asks by SIGUSR2, when the rank is late
    rank-N.nccl.txt      NCCL's warnings
    fr_trace_rank_N      torch's flight recorder: by torch when NCCL times out, by us when the rank is late
    rank-N.env           the variables that decide how ranks talk to each other, without what could be a secret

The folder goes into the black box when an attempt ends badly. What a user has set stays as it is.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from warpbeam.record.black_box import KILLS, memory_kills
from warpbeam.record.redact import kept_environment

LOADING = "loading"
"""The phase of a rank that has met the others once, and has not begun its first batch."""
STACK_SIGNAL = signal.SIGUSR2
RECORDED = 2000
"""Collectives that the flight recorder keeps: a few hundred bytes each."""
_BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def variables(folder: Path, rank: int, *, nccl: bool, env: Mapping[str, str]) -> dict[str, str]:
    """What to add to a rank's environment before its process group is made. Pure.

    Args:
        nccl: whether NCCL carries the collectives.
        env: what is set already, by either of a variable's names; that is left alone.
    """
    wanted = {}
    if not any(name in env for name in _BUFFER):
        wanted[_BUFFER[0]] = str(RECORDED)
    if not nccl:
        return wanted
    if not any(name in env for name in _DUMP_FILE):
        wanted[_DUMP_FILE[0]] = str(folder / "fr_trace_rank_")  # torch adds the rank
    if "TORCH_NCCL_DUMP_ON_TIMEOUT" not in env:
        wanted["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    if "NCCL_DEBUG" not in env:
        wanted["NCCL_DEBUG"] = "WARN"
        wanted["NCCL_DEBUG_FILE"] = env.get("NCCL_DEBUG_FILE", str(folder / f"rank-{rank}.nccl.txt"))
    return wanted


def switch_on(folder: str, rank: int, *, nccl: bool) -> Stacks:
    """In the rank's process, before it joins the others."""
    os.environ.update(variables(Path(folder), rank, nccl=nccl, env=os.environ))
    stacks = Stacks(Path(folder), rank)
    stacks.note_environment()
    return stacks


def stacks_path(folder: Path, rank: int) -> Path:
    """The file of a rank's stacks."""
    return folder / f"rank-{rank}.stacks.txt"


class Stacks:
    """A rank's file of stacks, and its part of the flight recorder. The file stays open: a crash cannot open one."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # NCCL makes no folder for its file
        self._folder, self._rank = folder, rank
        self._trace = folder / f"fr_trace_rank_{rank}"
        self._file: TextIO = stacks_path(folder, rank).open("a")
        faulthandler.enable(self._file)
        faulthandler.register(STACK_SIGNAL, self._file, all_threads=True)

    def note_environment(self) -> None:
        """Once it is complete."""
        kept = "".join(f"{name}={value}\n" for name, value in sorted(kept_environment(os.environ).items()))
        (self._folder / f"rank-{self._rank}.env").write_text(kept + f"{KILLS}{memory_kills()[0]}\n")

    def write(self) -> None:
        """From any thread, while the rank is late. Whatever fails here must not end a training."""
        with suppress(OSError, ValueError):
            self._file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} this rank is late\n")
            self._file.flush()
            faulthandler.dump_traceback(self._file, all_threads=True)
        with suppress(Exception):
            self._write_trace()

    def _write_trace(self) -> None:
        from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]  # not in the stubs

        trace = _dump_fr_trace_json(True, False)  # with all collectives, those that are over too
        if "entries" in json.loads(trace):
            self._trace.write_bytes(trace)

    def remove(self) -> None:
        """All went well: nothing of this rank is left behind."""
        faulthandler.unregister(STACK_SIGNAL)
        faulthandler.enable()
        self._file.close()
        for path in (self._trace, *self._folder.glob(f"rank-{self._rank}.*")):
            if path.suffix in (".txt", ".env") or path == self._trace:
                path.unlink(missing_ok=True)
