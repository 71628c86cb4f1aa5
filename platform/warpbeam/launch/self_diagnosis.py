"""The doctor, called by the driver itself while an attempt is late or hangs; its answer is in `warpbeam status`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from warpbeam.errors import WarpbeamError
from warpbeam.record import keys
from warpbeam.record.view import RunView

SCHEMA = "warpbeam/diagnosis/v1"


class SelfDiagnosis:
    """One look at a time, on a thread of its own: it reads the whole record.

    Args:
        warn: hears the cause.
    """

    def __init__(self, view: RunView, attempt: str, warn: Callable[[str], None]) -> None:
        self._view = view
        self._attempt = attempt
        self._warn = warn
        self._thread: threading.Thread | None = None

    def ask(self, why: str) -> None:
        """Have the doctor look. Returns at once.

        Args:
            why: what is late, in words.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, args=(why,), name="doctor", daemon=True)
            self._thread.start()

    def _look(self, why: str) -> None:
        from warpbeam.doctor.from_record import examine
        from warpbeam.doctor.words import to_json

        try:
            read, answer = examine(self._view)
            said: dict[str, Any] = to_json(answer, read)
            row = {"schema": SCHEMA, "at": round(time.time(), 3), "because": why, **said}
            key = keys.diagnosis(self._view.team, self._view.run, self._attempt)
            self._view.store.put(key, json.dumps(row, ensure_ascii=False).encode())
            self._warn(in_words(row))
        except (WarpbeamError, OSError) as error:  # no matcher on this kind of machine, say, or no store for a while
            self._warn(f"the doctor could not look: {error}")


def in_words(row: dict[str, Any]) -> str:
    """One line for `status` and the terminal."""
    found = row.get("finding")
    if found is None:
        return f"the doctor knows no cause yet ({row['because']})"
    return f"{found['cause']} ({found['where']}, {found['confidence']:.2f}); do: {found['do']}"
