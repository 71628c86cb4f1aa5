"""The run's log: the one place that says which checkpoints exist and who may write the next entry.

An append-only list of small JSON objects, `log/000000000000`, `...001`, without gaps. An entry is appended by creating
its key only if nothing is there (a conditional PUT), so two writers can never both hold the same place in history. An
attempt first appends a *claim*; every later entry of it is refused once a newer claim exists (`Fenced`), so a zombie
can commit nothing. Each entry carries a nonce: whoever gets "already there" reads the entry, and finding its own nonce
means that it had won and only the answer was lost. Listings are hints; the log wins.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from warpbeam.checkpoint.members import Member
from warpbeam.checkpoint.schema import WRITER, check_schema
from warpbeam.errors import InfraError, PlatformError, UserError, WarpbeamError
from warpbeam.record.states import RunState
from warpbeam.storage import layout
from warpbeam.storage.store import ObjectMissing, ObjectStore

SCHEMA = "warpbeam/log/v1"
LEASE_S = 30.0
FINAL_STATES = frozenset({"done", "stopped", "failed"})

EntryKind = Literal["claim", "commit", "delete", "state", "total"]
Check = Callable[[list["Entry"]], None]
logger = logging.getLogger(__name__)


class Fenced(InfraError):
    """A newer attempt has claimed the run: this one may write nothing more and should end."""

    default_reason = "fenced"


class AlreadyRunning(UserError):
    """The run is alive elsewhere; a second start of the same name would fight it."""

    default_reason = "already_running"


class LogBroken(PlatformError):
    """The log itself cannot be trusted: an entry is missing or unreadable."""

    default_reason = "log_broken"


@dataclass(frozen=True)
class Entry:
    """One line of a run's history. Fields that a kind does not use are None; `extra` holds what only that kind has."""

    seq: int
    nonce: str
    kind: EntryKind
    attempt: str
    at: str
    step: int | None = None
    manifest: str | None = None
    sha256: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As it is stored."""
        known = {"schema": SCHEMA, "writer": WRITER, "seq": self.seq, "nonce": self.nonce, "kind": self.kind}
        rest = {"attempt": self.attempt, "step": self.step, "manifest": self.manifest, "sha256": self.sha256}
        return json.dumps({**known, **rest, "at": self.at, **self.extra}, allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Entry:
        """Parse a stored entry; a newer schema is refused, damage is `LogBroken`."""
        try:
            raw = dict(json.loads(data))
            schema = raw.pop("schema")
        except (ValueError, TypeError, KeyError) as error:
            raise LogBroken(f"log entry {where} is not readable", why=str(error)) from error
        check_schema(schema, SCHEMA, where)
        try:
            raw.pop("writer", None)
            names = ("seq", "nonce", "kind", "attempt", "at", "step", "manifest", "sha256")
            return cls(**{name: raw.pop(name) for name in names}, extra=raw)
        except KeyError as error:
            raise LogBroken(f"log entry {where} has no field {error}") from error

    @property
    def members(self) -> list[Member]:
        """The processes that a claim or a state entry names."""
        return [Member.from_dict(member) for member in self.extra.get("members", [])]


class RunLog:
    """Reads and appends the log of one run. Threads may share one; every process makes its own."""

    def __init__(self, store: ObjectStore, team: str, run: str) -> None:
        self.store = store
        self.team = team
        self.run = run
        self._entries: list[Entry] = []
        self._lock = threading.RLock()

    def read(self) -> list[Entry]:
        """Every entry, oldest first. Entries never change, so only new ones are fetched on later calls."""
        with self._lock:
            if not self._entries:
                self._read_listed()
            while (entry := self._get(len(self._entries))) is not None:
                self._entries.append(entry)
            return list(self._entries)

    def append(self, kind: EntryKind, attempt: str, *, check: Check = lambda entries: None, **fields: Any) -> Entry:
        """Append one entry. `check` sees the whole log right before each try and may raise to refuse.

        `fields` are the entry's `step`, `manifest`, `sha256`; anything else goes into `extra`.
        """
        nonce = secrets.token_hex(8)
        own = {name: fields.pop(name) for name in ("step", "manifest", "sha256") if name in fields}
        with self._lock:
            while True:
                entries = self.read()
                check(entries)
                entry = Entry(len(entries), nonce, kind, attempt, _now(), **own, extra=fields)
                if self._create(entry):
                    self._entries.append(entry)
                    return entry

    def claim(self, attempt: str, members: Iterable[Member] = (), **extra: Any) -> Claim:
        """Become the run's one writer. Raises `AlreadyRunning` when another attempt is alive.

        The check and the append are one step: who loses the place to another claim looks again. Processes of a dead
        attempt may still run on this host; `members.end_leftovers` sees them off, after the claim has fenced them.
        """
        own = list(members)

        def refuse_if_alive(entries: list[Entry]) -> None:
            current = newest_claim(entries)
            if current is not None and self.alive(current, not_counting=own):
                raise self._already_running(current)

        entry = self.append("claim", attempt, check=refuse_if_alive, members=[m.to_dict() for m in own], **extra)
        claim = Claim(self, attempt, entry.seq)
        claim.write_index_hint()
        return claim

    def alive(self, claim: Entry, *, not_counting: Sequence[Member] = ()) -> bool:
        """Whether the attempt of this claim still runs.

        On this host: whether its driver does (or, when it names none, any of its processes). Elsewhere: whether it has
        written a heartbeat or a log entry within the lease, by the store's clock. An attempt that has logged its end is
        not alive. `not_counting`: the asker's own processes (a driver that starts the next attempt of its own run).
        """
        entries = [entry for entry in self.read() if entry.attempt == claim.attempt and entry.seq >= claim.seq]
        if any(entry.kind == "state" and entry.extra.get("state") in FINAL_STATES for entry in entries):
            return False
        members = self.members_of(claim.attempt)
        deciding = [member for member in members if member.role == "driver"] or members
        if any(member.same_process(own) for member in deciding for own in not_counting):
            return False
        if deciding and all(member.is_here for member in deciding):
            return any(member.is_running() for member in deciding)
        return self._lease_age_s(claim.attempt, entries) < LEASE_S

    def members_of(self, attempt: str) -> list[Member]:
        """Every process that the attempt's claim and state entries name."""
        return [member for entry in self.read() if entry.attempt == attempt for member in entry.members]

    def total(self) -> int | None:
        """The frozen number of steps, once counted."""
        totals = [entry.extra["total_steps"] for entry in self.read() if entry.kind == "total"]
        return int(totals[-1]) if totals else None

    def state(self) -> tuple[RunState, str]:
        """The newest state and its reason; see `newest_state`."""
        return newest_state(self.read())

    def newest_commit(self) -> Entry | None:
        """The checkpoint that a resume begins with."""
        live = live_commits(self.read())
        return live[-1] if live else None

    def _lease_age_s(self, attempt: str, entries: list[Entry]) -> float:
        prefix = f"{layout.record_prefix(self.team, self.run, attempt)}/heartbeat/"
        ages = [info.age_s for info in self.store.list(prefix)]
        if entries:
            head = self.store.head(self._key(entries[-1].seq))
            ages += [head.age_s] if head else []
        return min(ages, default=float("inf"))

    def _already_running(self, claim: Entry) -> AlreadyRunning:
        members = self.members_of(claim.attempt)
        who = next((m for m in members if m.role == "driver"), members[0] if members else None)
        place = f"pid {who.pid} on {who.host}" if who else "a process that its claim does not name"
        return AlreadyRunning(
            f"run {self.run!r} is already running: attempt {claim.attempt}, {place}, since {claim.at}",
            why="one run has one writer; a second start would be fenced or would fence the first",
            fix=f"`warpbeam status {self.run}` to watch it, `warpbeam stop {self.run}` to end it; "
            f"after a crash on another machine it counts as dead {LEASE_S:.0f} s after its last heartbeat",
        )

    def _read_listed(self) -> None:
        """First read: fetch what a listing shows in parallel. The listing is a hint; `read` goes on from there."""
        listed = self.store.list(layout.log_prefix(self.team, self.run) + "/")
        seqs = [seq for seq in (layout.parse_log_key(info.key) for info in listed) if seq is not None]
        if not seqs:
            return
        with ThreadPoolExecutor(max_workers=8) as pool:
            found = list(pool.map(self._get, range(max(seqs) + 1)))
        for seq, entry in enumerate(found):
            if entry is None:
                raise LogBroken(
                    f"log entry {self._key(seq)} is missing", why="later ones exist: it was deleted by hand"
                )
            self._entries.append(entry)

    def _get(self, seq: int) -> Entry | None:
        key = self._key(seq)
        try:
            return Entry.from_bytes(self.store.get(key), key)
        except ObjectMissing:
            return None

    def _create(self, entry: Entry) -> bool:
        """Whether the entry is now in the log. A lost or unclear answer is settled by reading the nonce back."""
        unclear: WarpbeamError | None = None
        try:
            if self.store.put_if_absent(self._key(entry.seq), entry.to_bytes()):
                return True
        except WarpbeamError as error:
            unclear = error
        there = self._get(entry.seq)
        if there is None and unclear is not None:
            raise unclear
        return there is not None and there.nonce == entry.nonce

    def _key(self, seq: int) -> str:
        return layout.log_key(self.team, self.run, seq)


@dataclass
class Claim:
    """The right to write a run's log, until a newer attempt claims. Goes to other processes by `to_dict`."""

    log: RunLog
    attempt: str
    seq: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the processes of the attempt."""
        return {"team": self.log.team, "run": self.log.run, "attempt": self.attempt, "seq": self.seq}

    @classmethod
    def from_dict(cls, store: ObjectStore, data: Mapping[str, Any]) -> Claim:
        """The same claim in another process of the attempt."""
        return cls(RunLog(store, data["team"], data["run"]), data["attempt"], int(data["seq"]))

    def check(self) -> None:
        """Raise `Fenced` if another attempt has claimed the run since."""
        self._refuse_if_fenced(self.log.read())

    def commit(self, step: int, manifest: str, sha256: str, **extra: Any) -> Entry:
        """Make a checkpoint real. Only after every file and the manifest are in the store."""
        entry = self._append("commit", step=step, manifest=manifest, sha256=sha256, **extra)
        self.write_index_hint()
        return entry

    def delete(self, commit: Entry) -> Entry:
        """Log that a committed checkpoint is given up. Comes before its objects are removed."""
        return self._append("delete", step=commit.step, manifest=commit.manifest, sha256=commit.sha256)

    def state(self, state: str, reason: str = "", *, members: Iterable[Member] = (), **extra: Any) -> Entry:
        """Log a state of the run. `done`, `stopped` and `failed` end the attempt; "running" may name its ranks.

        Raises ValueError where the lifecycle (record/states.py) has no such step: a mistake in our code.
        """
        before, _ = self.log.state()
        if not before.may_become(RunState(state)):
            raise ValueError(f"attempt {self.attempt} of run {self.log.run} cannot become {state}: it is {before}")
        named = {"members": [m.to_dict() for m in members]}
        entry = self._append("state", state=state, reason=reason, **(named if named["members"] else {}), **extra)
        self.write_index_hint()
        return entry

    def total(self, steps: int, **extra: Any) -> Entry:
        """Freeze the number of optimizer steps, once preparation has counted."""
        return self._append("total", total_steps=steps, **extra)

    def write_index_hint(self) -> None:
        """Replace the key that listings of many runs read. Only a hint, so failing to write it is only a warning."""
        try:
            entries = self.log.read()
            live = live_commits(entries)
            step = live[-1].step if live else None
            key = layout.index_key(self.log.team, self.log.run, newest_state(entries)[0], step or 0, time.time())
            self.log.store.put(key, json.dumps({"schema": "warpbeam/index/v1", "writer": WRITER}).encode())
            for info in list(self.log.store.list(key.rpartition("/")[0] + "/")):
                if info.key != key:
                    self.log.store.delete(info.key)
        except WarpbeamError as error:
            logger.warning("the index hint of run %s was not written: %s", self.log.run, error)

    def _append(self, kind: EntryKind, **fields: Any) -> Entry:
        return self.log.append(kind, self.attempt, check=self._refuse_if_fenced, **fields)

    def _refuse_if_fenced(self, entries: list[Entry]) -> None:
        newest = newest_claim(entries)
        if newest is not None and newest.seq > self.seq:
            raise Fenced(
                f"attempt {self.attempt} of run {self.log.run!r} was replaced by {newest.attempt} at {newest.at}",
                why="a newer attempt has claimed the run, so this one may write nothing more",
                fix=f"nothing to do here: `warpbeam status {self.log.run}` shows the attempt that goes on",
            )


def newest_claim(entries: list[Entry]) -> Entry | None:
    """The claim that holds now."""
    return next((entry for entry in reversed(entries) if entry.kind == "claim"), None)


def newest_state(entries: list[Entry]) -> tuple[RunState, str]:
    """The newest state and its reason; right after a claim the attempt starts, and an empty log waits for one."""
    for entry in reversed(entries):
        if entry.kind == "state":
            return RunState(entry.extra["state"]), str(entry.extra.get("reason", ""))
        if entry.kind == "claim":
            return RunState.STARTING, ""
    return RunState.WAITING, ""


def live_commits(entries: list[Entry]) -> list[Entry]:
    """Committed and not deleted, in the order of the log: the last is the one to resume from."""
    deleted = {entry.manifest for entry in entries if entry.kind == "delete"}
    return [entry for entry in entries if entry.kind == "commit" and entry.manifest not in deleted]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
