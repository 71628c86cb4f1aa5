"""Where the ranks of an attempt keep their output until it is in the record: one folder, the same path everywhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from warpbeam.record.capture import ship_rest

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore

Names = tuple[str, str, str]  # team, run, attempt


def log_dir(names: Names) -> Path:
    """Where ranks write; made by the first of them."""
    return Path(tempfile.gettempdir()) / f"warpbeam-{os.getuid()}" / "-".join(names)


def bring_home(store: ObjectStore, names: Names, secrets: Iterable[str]) -> None:
    """Ship what ranks that are gone left on this machine, and remove the folder; what cannot be shipped stays."""
    folder = log_dir(names)
    ship_rest(store, *names, folder, secrets)
    if not list(folder.glob("*.log")):
        shutil.rmtree(folder, ignore_errors=True)
