"""Where the ranks of an attempt keep their output until it is in the record: one folder, the same path everywhere."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpbeam.errors import WarpbeamError
from warpbeam.record import black_box
from warpbeam.record.capture import ship_rest
from warpbeam.record.redact import hidden_values

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore

Names = tuple[str, str, str]  # team, run, attempt


def log_dir(names: Names) -> Path:
    """Where ranks write; made by the first of them."""
    return Path(tempfile.gettempdir()) / f"warpbeam-{os.getuid()}" / "-".join(names)


def bring_home(store: ObjectStore, names: Names, secrets: Iterable[str], *, failed: bool = True) -> None:
    """Ship what ranks that are gone left on this machine, and remove the folder; what cannot be shipped stays.

    Args:
        failed: the attempt ended badly: what explains it goes into its black box.
    """
    folder = log_dir(names)
    hidden = [*secrets]
    ship_rest(store, *names, folder, hidden)
    if failed:
        with _explains_only():
            parts = black_box.of_machine(folder, [*hidden, *hidden_values(os.environ)])
            black_box.keep(store, names, _machine(), parts)
    if not list(folder.glob("*.log")):
        shutil.rmtree(folder, ignore_errors=True)


def keep_of_record(
    store: ObjectStore, names: Names, beats: Sequence[Mapping[str, Any]], ranks: int, secrets: Iterable[str]
) -> None:
    """The driver's part of the black box."""
    with _explains_only():
        hidden = [*secrets, *hidden_values(os.environ)]
        black_box.keep(store, names, "driver", black_box.of_record(store, names, beats, ranks, hidden))


@contextmanager
def _explains_only() -> Iterator[None]:
    """An end must not fail for what only explains it."""
    try:
        yield
    except (WarpbeamError, OSError) as error:
        print(f"warpbeam: the black box is not complete: {error}", file=sys.stderr)


def _machine() -> str:
    return "machine-" + re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:80]
