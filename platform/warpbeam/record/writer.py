"""What a process says about itself while it runs: events, metric rows, a heartbeat; and whether somebody asks it to
stop.

The training thread only appends to memory. One background thread talks to the store, so a slow or absent network
costs the record, never a step. A store that fails is tried again; what no longer fits in memory is dropped, oldest
first, and counted.

    with RecordWriter(store, "support", "sft", "0001-ab12", who="rank-0") as record:
        record.event("model_built", parameters=n)
        record.metrics({"step": 1, "loss_metrics/global_avg_loss": 2.3})
        record.beat(step=1, phase="compute")
        if record.stop_requested: ...
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warpbeam.checkpoint.members import this_process
from warpbeam.record import keys
from warpbeam.record.redact import Redactor
from warpbeam.record.standing_point import StandingPoint
from warpbeam.record.stream import StreamWriter
from warpbeam.storage.layout import heartbeat_key

if TYPE_CHECKING:
    from warpbeam.record.phases import PhaseClock
    from warpbeam.storage.store import ObjectStore

SCHEMA = "warpbeam/record/v1"
FLUSH_S = 2.0
ROWS_S = 5.0  # each sending of rows costs the rank that computes beside it some milliseconds
YOUNG_S = 60.0  # until then somebody waits for every row
HEARTBEAT_S = 5.0
CLOSE_S = 10.0
LATE_LOOKS = 2
STEP_DIR_VARIABLE = "WARPBEAM_STEP_DIR"


class RecordWriter:
    """Writes the part of a run's record that belongs to one process (`who`) of one attempt.

    Args:
        clock: when given, every heartbeat carries its bucket totals.
        on_beat: called at each sign of progress, by whoever gives it.
        on_late: called on the background thread, a few times, while this process stands somewhere longer than it
            usually does: to leave its stacks behind.
        secrets: values that must not reach the record.
        watch_stop: look for a stop request of this attempt at each flush (rank 0 and the driver do).
        flush_s: how often the background thread has its turn; rows (after a minute) and heartbeats wait for several.
    """

    def __init__(
        self,
        store: ObjectStore,
        team: str,
        run: str,
        attempt: str,
        who: str,
        *,
        clock: PhaseClock | None = None,
        on_beat: Callable[[], None] = lambda: None,
        on_late: Callable[[], None] = lambda: None,
        secrets: Iterable[str] = (),
        watch_stop: bool = False,
        flush_s: float = FLUSH_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._who = who
        self._clock = clock
        self._redactor = Redactor(secrets)
        self._wall = wall
        self._flush_s = flush_s
        self._events = StreamWriter(store, keys.stream(team, run, attempt, "events", who), "jsonl")
        self._metrics = StreamWriter(store, keys.stream(team, run, attempt, "metrics", who), "jsonl")
        self._heartbeat_key = heartbeat_key(team, run, attempt, who)
        self._stop_key = keys.stop(team, run, attempt) if watch_stop else None
        self._identity = this_process(who).to_dict()
        self._step = self._beats = 0
        self._on_beat = on_beat
        self._on_late = on_late
        self._late_looks = 0
        self._step_file = _open_step_file(who)
        self.stands = StandingPoint()
        self._beaten_at = self._rows_at = float("-inf")
        self._began_at = time.monotonic()
        self._warned = False
        self.stop_requested: dict[str, Any] | None = None
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name=f"record-{who}", daemon=True)
        self._thread.start()

    def event(self, kind: str, **fields: Any) -> None:
        """Something happened once: `kind` in snake_case and what one needs to understand it later."""
        self._events.append(self._line({"schema": SCHEMA, "kind": kind, **fields}))

    def metrics(self, row: Mapping[str, Any]) -> None:
        """One row of numbers under torchtitan's names; must hold `step`."""
        self._metrics.append(self._line(dict(row)))

    def beat(self, step: int, phase: str | None = None) -> None:
        """A sign of progress, and where this process stands; sent every few seconds, with how many signs there were.

        Without `phase` it is one of the phase in hand: the last mark, else the clock's current bucket.
        """
        self._step = step
        self._beats += 1
        self._on_beat()
        self.stands.mark(phase or self.stands.phase)
        if self._step_file is not None:
            os.pwrite(self._step_file, b"%020d" % step, 0)

    def mark(self, phase: str, *, passes: bool = False) -> None:
        """This process's loop enters a phase; `passes`: a place that all ranks pass alike. Cheaper than a beat."""
        self.stands.mark(phase, passes=passes)

    def left_loop(self) -> None:
        """This process's loop over batches has ended, or was left."""
        self.stands.left = True

    def flush_soon(self) -> None:
        """Send in the background now instead of at the next turn."""
        self._wake.set()

    def close(self) -> None:
        """Send what is left, for at most ten seconds. Safe to call twice."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join(CLOSE_S)
        if self._step_file is not None:
            os.close(self._step_file)
            self._step_file = None

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(self, row: dict[str, Any]) -> bytes:
        row.setdefault("at", round(self._wall(), 3))
        row.setdefault("attempt", self._attempt)
        row.setdefault("who", self._who)
        return self._redactor.text(json.dumps(row, default=str, ensure_ascii=False)).encode() + b"\n"

    def _loop(self) -> None:
        while not self._closing:
            self._turn()
            if self._wake.wait(self._flush_s):
                self._rows_at = float("-inf")
            self._wake.clear()
        deadline = time.monotonic() + CLOSE_S
        while not self._turn(final=True) and time.monotonic() < deadline:
            time.sleep(0.5)

    def _turn(self, *, final: bool = False) -> bool:
        """One round with the store; False when it failed and must be tried again."""
        try:
            if not final:
                self._look_at_itself()
            self._events.flush()
            self._send_rows(final)
            self.send_heartbeat(final)
            if self._stop_key is not None and self.stop_requested is None and not final:
                self._look_for_stop(self._stop_key)
        except Exception as error:  # a broken record must never end training, whatever broke it
            if not self._warned:
                self._warned = True
                print(f"warpbeam: the record cannot be written now, trying again: {error}", file=sys.stderr, flush=True)
            return False
        return True

    def _send_rows(self, final: bool) -> None:
        now = time.monotonic()
        young = now - self._began_at < YOUNG_S
        if final or young or now - self._rows_at >= ROWS_S - 0.1:
            self._metrics.flush()
            self._rows_at = now

    def _look_at_itself(self) -> None:
        if not self.stands.is_late():
            self._late_looks = 0
        elif self._late_looks < LATE_LOOKS:
            self._late_looks += 1
            self._on_late()

    def send_heartbeat(self, final: bool) -> None:
        """The background thread's part: send where this process stands, when it is time."""
        now = time.monotonic()
        if not final and now - self._beaten_at < HEARTBEAT_S - 0.1:
            return
        phase = self.stands.phase or (self._clock.current if self._clock else "start")
        beat = {
            "schema": SCHEMA,
            **self._identity,
            "attempt": self._attempt,
            "step": self._step,
            "phase": phase,
            "beats": self._beats,
            "ended": final,
            "at": round(self._wall(), 3),
            "dropped": self._events.dropped + self._metrics.dropped,
            **self.stands.report(),
        }
        if self._clock:
            beat["buckets"] = {name: round(seconds, 3) for name, seconds in self._clock.totals().items()}
        self._store.put(self._heartbeat_key, json.dumps(beat).encode())
        self._beaten_at = now

    def _look_for_stop(self, key: str) -> None:
        if self._store.head(key) is not None:
            self.stop_requested = json.loads(self._store.get(key))


def read_steps(directory: Path) -> dict[str, int]:
    """By process: the step of its last `beat`, from what it left on this machine's disk. SIGKILL does not lose it."""
    return {path.stem: int(path.read_bytes() or b"0") for path in directory.glob("*.step")}


def _open_step_file(who: str) -> int | None:
    """Where the launcher asks for it by the environment, every step is noted in a local file as well: the heartbeat
    is seconds old when a process dies, and whether two deaths were at the same step decides about a retry.
    """
    directory = os.environ.get(STEP_DIR_VARIABLE)
    if not directory or not who.startswith("rank-"):
        return None
    return os.open(Path(directory) / f"{who}.step", os.O_WRONLY | os.O_CREAT, 0o600)
