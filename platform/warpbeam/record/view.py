"""What a run's record says, read from storage alone: it looks the same from the laptop that started the run, from
another machine, and after the cluster is gone.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from warpbeam.checkpoint.log import RunLog, live_commits, newest_claim, newest_state
from warpbeam.errors import UserError
from warpbeam.record import keys
from warpbeam.record.phases import Phase, place_ranks
from warpbeam.record.states import RunState
from warpbeam.record.stream import StreamReader
from warpbeam.storage.layout import index_prefix, log_prefix, parse_index_key, record_prefix, submitted_prefix

if TYPE_CHECKING:
    from warpbeam.storage.store import ObjectStore

STEPS_FOR_ETA = 20
LOSS = "loss_metrics/global_avg_loss"
HELD_OUT = "validation_metrics/loss"
SPEED = "throughput/global_tps"
MFU = "mfu(%)"


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One run at one moment. What is not known is None."""

    team: str
    run: str
    state: RunState
    reason: str
    attempt: str | None
    attempts: int
    step: int
    total_steps: int | None
    committed_step: int | None
    phase: str | None
    heartbeat_age_s: float | None
    host: str | None
    claimed_at: str | None
    loss: float | None
    eval_loss_first: float | None
    eval_loss_last: float | None
    tokens_per_s: float | None
    eta_s: float | None
    buckets: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class LogPiece(NamedTuple):
    """Bytes that one process of one attempt printed."""

    attempt: str
    who: str
    data: bytes


@dataclass(frozen=True)
class RunLine:
    """One line of a listing."""

    team: str
    run: str
    state: str
    step: int
    at: datetime

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "at": self.at.isoformat()}


class RunView:
    """Reads one run. Cheap to make; each method fetches what it needs."""

    def __init__(self, store: ObjectStore, team: str, run: str) -> None:
        self.store = store
        self.team = team
        self.run = run
        self.log = RunLog(store, team, run)

    def state(self) -> tuple[RunState, str]:
        """The state and its reason code."""
        entries = self.log.read()
        claim = newest_claim(entries)
        state, reason = newest_state(entries)
        if claim is None or state.ended or self.log.alive(claim):
            return state, reason
        return RunState.INTERRUPTED, "processes_gone"

    def failure_code(self) -> int:
        """The exit code that the command of a failed run ended with, by what the log says of the failure."""
        failed = [entry for entry in self.log.read() if entry.kind == "state"][-1].extra
        if failed.get("reason") in ("bad_input", "disk_full"):
            return 2
        return 3 if failed.get("owner") in ("platform", "infra", "unknown") else 1

    def attempts(self) -> list[str]:
        """Names of the attempts, oldest first."""
        return [entry.attempt for entry in self.log.read() if entry.kind == "claim"]

    def status(self) -> RunStatus:
        """Everything `warpbeam status` shows."""
        state, reason = self.state()
        entries = self.log.read()
        claim = newest_claim(entries)
        commits = live_commits(entries)
        committed = commits[-1].step if commits else None
        attempt = claim.attempt if claim else None
        beats = self.heartbeats(attempt) if attempt else {}
        rows = self.metrics(attempt) if attempt else []
        ranks = [beat for who, (beat, _) in beats.items() if who.startswith("rank-")]
        total = self.log.total()
        step = max([committed or 0, *(beat["step"] for beat in ranks), *(int(row["step"]) for row in rows[-1:])])
        held_out = [float(row[HELD_OUT]) for row in self.all_metrics() if row.get(HELD_OUT) is not None]
        ages = [age_s for _, age_s in beats.values()]
        driver = next((member for member in claim.members if member.role == "driver"), None) if claim else None
        return RunStatus(
            team=self.team,
            run=self.run,
            state=state,
            reason=reason,
            attempt=attempt,
            attempts=len(self.attempts()),
            step=step,
            total_steps=total,
            committed_step=committed,
            phase=ranks[0]["phase"] if ranks and not state.ended else None,
            heartbeat_age_s=min(ages) if ages else None,
            host=driver.host if driver else None,
            claimed_at=claim.at if claim else None,
            loss=_last(rows, LOSS),
            eval_loss_first=held_out[0] if held_out else None,
            eval_loss_last=held_out[-1] if held_out else None,
            tokens_per_s=_median(rows[-STEPS_FOR_ETA:], SPEED),
            eta_s=None if state.ended else eta_s(rows, total),
            buckets=self.buckets(attempt) if attempt else {},
        )

    def heartbeats(self, attempt: str) -> dict[str, tuple[dict[str, Any], float]]:
        """By process: its last heartbeat and that one's age in seconds, by the store's clock."""
        found = {}
        for info in self.store.list(f"{record_prefix(self.team, self.run, attempt)}/heartbeat/"):
            who = info.key.rpartition("/")[2].removesuffix(".json")
            found[who] = (json.loads(self.store.get(info.key)), info.age_s)
        return found

    def metrics(self, attempt: str) -> list[dict[str, Any]]:
        """Rows of one attempt in the order of writing: rank 0's, and those that a survivor knew besides."""
        streams = StreamReader(self.store, keys.streams(self.team, self.run, attempt, "metrics")).read()
        rows = json_lines(streams.pop("rank-0", b""))
        known = {_what(row) for row in rows}
        for row in (row for data in streams.values() for row in json_lines(data)):
            if _what(row) not in known:
                known.add(_what(row))
                rows.append(row)
        return rows

    def all_metrics(self) -> list[dict[str, Any]]:
        """Rows of all attempts, oldest first."""
        return [row for attempt in self.attempts() for row in self.metrics(attempt)]

    def events(self, attempt: str) -> list[dict[str, Any]]:
        """Events of all processes of one attempt, by time."""
        reader = StreamReader(self.store, keys.streams(self.team, self.run, attempt, "events"))
        rows = [row for data in reader.read().values() for row in json_lines(data)]
        return sorted(rows, key=lambda row: float(row["at"]))

    def buckets(self, attempt: str) -> dict[str, float]:
        """Seconds by bucket: the final sums where the attempt ended well, else what driver and ranks said last."""
        summary = self.summary(attempt)
        if summary:
            return dict(summary["buckets"])
        beats = {who: beat for who, (beat, _) in self.heartbeats(attempt).items()}
        said = {
            who: beat["buckets"] for who, beat in beats.items() if "buckets" in beat
        }  # a first sign of life has none
        driver = dict(said.pop("driver", {}))
        driver.pop(Phase.COMPUTE.value, None)  # its word for the ranks' time, earlier attempts' too
        ranks = list(said.values())
        mean_s = sum(sum(rank.values()) for rank in ranks) / max(1, len(ranks))
        placed = place_ranks(driver, mean_s, 0.0, ranks)
        return {name: seconds for name, seconds in placed.items() if seconds}

    def summary(self, attempt: str) -> dict[str, Any] | None:
        """What the driver wrote when the attempt ended."""
        return self._json(keys.summary(self.team, self.run, attempt))

    def facts(self, attempt: str) -> dict[str, Any] | None:
        """What was fixed when the attempt began: job, plan, pool, versions."""
        return self._json(keys.facts(self.team, self.run, attempt))

    def diagnosis(self, attempt: str) -> dict[str, Any] | None:
        """What the doctor said when the driver asked it; None when nothing was late."""
        return self._json(keys.diagnosis(self.team, self.run, attempt))

    def data_prefix(self, split: str = "train") -> str | None:
        """Where the run's prepared data is; None while no attempt has come that far."""
        for attempt in reversed(self.attempts()):
            go = self._json(keys.go(self.team, self.run, attempt))
            if go and go["go"]:
                return str(go["spec"]["data"][f"{split}_prefix"])
        return None

    def logs(self, readers: dict[str, StreamReader], since_s: float | None = None) -> list[LogPiece]:
        """What is new in the logs of all attempts; `readers` keeps the places between calls.

        Args:
            since_s: of what was there before the first call, only what was written in the last so many seconds.
        """
        fresh = []
        for attempt in self.attempts():
            prefix = keys.streams(self.team, self.run, attempt, "logs")
            reader = readers.setdefault(attempt, StreamReader(self.store, prefix, since_s))
            fresh += [LogPiece(attempt, who, data) for who, data in reader.read().items()]
        return fresh

    def _json(self, key: str) -> dict[str, Any] | None:
        if self.store.head(key) is None:
            return None
        found: dict[str, Any] = json.loads(self.store.get(key))
        return found


def list_runs(store: ObjectStore, team: str | None = None) -> list[RunLine]:
    """All runs, newest first, from key names only: one listing for each team."""
    teams = [team] if team else store.list_dirs("teams/")
    newest: dict[tuple[str, str], RunLine] = {}
    for name in teams:
        for info in store.list(f"{index_prefix(name)}/"):
            hint = parse_index_key(info.key)
            if hint is None:
                continue
            line = RunLine(name, hint.run, hint.state, hint.step, hint.at)
            seen = newest.get((name, hint.run))
            if seen is None or line.at >= seen.at:
                newest[name, hint.run] = line
    return sorted(newest.values(), key=lambda line: line.at, reverse=True)


def find_run(store: ObjectStore, name: str, team: str | None = None) -> RunView:
    """The run of this name (`run` or `team/run`) in whichever team has it."""
    if "/" in name:
        team, _, name = name.partition("/")
    teams = [team] if team else store.list_dirs("teams/")
    having = [candidate for candidate in teams if _is_known(store, candidate, name)]
    if len(having) == 1:
        return RunView(store, having[0], name)
    if having:
        raise UserError(
            f"several teams have a run {name!r}: {', '.join(having)}",
            fix=f"say which: {having[0]}/{name}",
            reason="ambiguous_run",
        )
    known = [line.run for line in list_runs(store, team)[:5]]
    raise UserError(
        f"there is no run {name!r} in {store.uri}",
        why=f"the newest runs there: {', '.join(known)}" if known else "there are no runs at all",
        fix="`warpbeam list` shows all; one that was sent just now appears when its driver has started; "
        "another store: --pool POOL or --store URI",
        reason="no_such_run",
    )


def _is_known(store: ObjectStore, team: str, run: str) -> bool:
    """Whether a driver has claimed it, or somebody has sent it to a cluster."""
    prefixes = (log_prefix(team, run), submitted_prefix(team, run))
    return any(next(store.list(f"{prefix}/"), None) is not None for prefix in prefixes)


def eta_s(rows: list[dict[str, Any]], total_steps: int | None) -> float | None:
    """Seconds to the last step, by the median of the newest steps' wall time; None when it cannot be told."""
    if total_steps is None or len(rows) < 2:
        return None
    recent = rows[-STEPS_FOR_ETA - 1 :]
    times = [
        (float(b["at"]) - float(a["at"])) / (int(b["step"]) - int(a["step"]))
        for a, b in pairwise(recent)
        if int(b["step"]) > int(a["step"])
    ]
    return statistics.median(times) * max(0, total_steps - int(rows[-1]["step"])) if times else None


def json_lines(data: bytes) -> list[dict[str, Any]]:
    """Rows of a JSON-lines object; a torn last line is left out."""
    return [json.loads(line) for line in data.split(b"\n")[:-1] if line]


def _what(row: dict[str, Any]) -> tuple[Any, bool]:
    """What a row is about: a step, or the evaluation after it."""
    return row.get("step"), HELD_OUT in row


def _median(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [float(row[name]) for row in rows if row.get(name) is not None]
    return statistics.median(values) if values else None


def _last(rows: list[dict[str, Any]], name: str) -> float | None:
    return next((float(row[name]) for row in reversed(rows) if row.get(name) is not None), None)
