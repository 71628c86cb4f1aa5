"""Files that a callback makes on this machine and keeps up to date in the run's record."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from warpbeam.errors import WarpbeamError
from warpbeam.storage.embedded import home
from warpbeam.storage.layout import record_prefix

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore
    from warpbeam.train.context import Context

log = logging.getLogger(__name__)


class RecordFiles:
    """A folder of this attempt, and its copy under the attempt's record. A failing upload only warns.

    Args:
        name: of the folder, here and there.
    """

    def __init__(self, ctx: Context, name: str) -> None:
        self.folder = home() / "runs" / ctx.job.team / ctx.job.name / ctx.attempt / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._store: ObjectStore = ctx.store
        self._prefix = f"{record_prefix(ctx.job.team, ctx.job.name, ctx.attempt)}/{name}"
        self._thread: threading.Thread | None = None

    def refresh_soon(self, make: Callable[[Path], None]) -> None:
        """Make the files and upload them beside the training; nothing when the last time has not ended yet."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self.refresh, args=(make,), name="record-files", daemon=True)
            self._thread.start()

    def refresh(self, make: Callable[[Path], None]) -> None:
        """Make the files in the folder, then upload all of it."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        make(self.folder)
        try:
            for path in sorted(self.folder.iterdir()):
                self._store.upload(path, f"{self._prefix}/{path.name}")
        except (WarpbeamError, OSError) as error:
            log.warning("%s were not copied to the record: %s", self.folder, error)
