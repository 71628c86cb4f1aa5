from __future__ import annotations

import json
from pathlib import Path

import pytest

from warpbeam.checkpoint.log import RunLog
from warpbeam.checkpoint.members import Member, this_process
from warpbeam.errors import InfraError, UnknownFate, UserError
from warpbeam.record import keys
from warpbeam.record.follow import follow_logs, wait_for_end
from warpbeam.record.states import RunState
from warpbeam.record.stop import request_stop
from warpbeam.record.stream import StreamWriter
from warpbeam.record.view import HELD_OUT, LOSS, RunView, eta_s, find_run, list_runs
from warpbeam.storage.layout import heartbeat_key
from warpbeam.storage.local import LocalStore

GONE = Member("driver", "elsewhere", 1, 0.0, "an-earlier-boot")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def claimed(store: LocalStore, attempt: str = "0001-aa", member: Member | None = None) -> RunLog:
    log = RunLog(store, "support", "sft")
    log.claim(attempt, [member or this_process("driver")])
    return log


def log_lines(store: LocalStore, attempt: str, who: str, text: bytes) -> StreamWriter:
    writer = StreamWriter(store, keys.stream("support", "sft", attempt, "logs", who), "txt")
    writer.append(text)
    writer.flush()
    return writer


def test_states_from_the_log(store: LocalStore) -> None:
    view = RunView(store, "support", "sft")
    assert view.state() == (RunState.WAITING, "")
    claim = RunLog(store, "support", "sft").claim("0001-aa", [this_process("driver")])
    assert view.state()[0] is RunState.STARTING
    claim.state("running")
    assert view.state()[0] is RunState.RUNNING
    claim.state("failed", "user_code_failed")
    assert view.state() == (RunState.FAILED, "user_code_failed")


def test_a_dead_driver_is_an_interrupted_run(store: LocalStore) -> None:
    gone = Member(**{**this_process("driver").to_dict(), "pid": 2**22 + 1})
    claimed(store, member=gone)
    assert RunView(store, "support", "sft").state() == (RunState.INTERRUPTED, "processes_gone")


def test_status_tells_step_total_loss_and_time(store: LocalStore) -> None:
    log = claimed(store)
    claim = log.claim("0002-bb", [this_process("driver")])
    claim.total(20)
    metrics = StreamWriter(store, keys.stream("support", "sft", "0002-bb", "metrics", "rank-0"), "jsonl")
    for step in (5, 6, 7):
        row = {"step": step, "at": 100.0 + 2 * step, "loss_metrics/global_avg_loss": 3.0 - step / 10}
        metrics.append(json.dumps(row).encode() + b"\n")
    metrics.flush()
    status = RunView(store, "support", "sft").status()
    assert (status.step, status.total_steps, status.attempts, status.attempt) == (7, 20, 2, "0002-bb")
    assert status.loss == pytest.approx(2.3)
    assert status.eta_s == pytest.approx(26.0)
    json.dumps(status.to_dict())


def test_rows_that_only_a_survivor_knew(store: LocalStore) -> None:
    claimed(store)
    for who, steps in (("rank-0", (1, 2)), ("rank-1", (1, 2, 3)), ("rank-2", (2, 3))):
        rows = StreamWriter(store, keys.stream("support", "sft", "0001-aa", "metrics", who), "jsonl")
        for step in steps:
            rows.append(json.dumps({"step": step, "by": who, LOSS: 1.0}).encode() + b"\n")
        rows.append(json.dumps({"step": 2, "by": who, HELD_OUT: 2.0}).encode() + b"\n")
        rows.flush()
    found = RunView(store, "support", "sft").metrics("0001-aa")
    assert [(row["step"], row["by"], LOSS in row) for row in found] == [
        (1, "rank-0", True),
        (2, "rank-0", True),
        (2, "rank-0", False),
        (3, "rank-1", True),
    ]


def test_a_rank_that_has_just_said_that_it_is_there(store: LocalStore) -> None:
    """Its first sign of life tells no times yet."""
    claimed(store)
    beat = {**this_process("rank-0").to_dict(), "attempt": "0001-aa", "step": 0, "phase": "start"}
    store.put(heartbeat_key("support", "sft", "0001-aa", "rank-0"), json.dumps(beat).encode())
    status = RunView(store, "support", "sft").status()
    assert (status.state, status.phase, status.buckets) == (RunState.STARTING, "start", {})


def test_what_the_driver_spent_before_its_ranks_counts_while_it_runs(store: LocalStore) -> None:
    claimed(store)
    beats: dict[str, dict[str, float]] = {
        "driver": {"start": 40.0, "prepare": 5.0, "compute": 30.0},
        "rank-0": {"start": 2.0, "compute": 20.0},
        "rank-1": {"start": 4.0, "compute": 18.0},
    }
    for who, buckets in beats.items():
        beat = {**this_process(who).to_dict(), "attempt": "0001-aa", "step": 3, "phase": "compute", "buckets": buckets}
        store.put(heartbeat_key("support", "sft", "0001-aa", who), json.dumps(beat).encode())
    found = RunView(store, "support", "sft").status().buckets
    assert found == {"start": 43.0, "prepare": 5.0, "compute": 19.0}


@pytest.mark.parametrize(
    ("reason", "owner", "code"),
    [
        ("user_code_failed", "ml", 1),
        ("bad_input", "ml", 2),
        ("disk_full", "infra", 2),
        ("no_resources", "platform", 3),
        ("too_many_failures", "infra", 3),
        ("crash", "unknown", 3),
    ],
)
def test_the_exit_code_of_a_failure(store: LocalStore, reason: str, owner: str, code: int) -> None:
    RunLog(store, "support", "sft").claim("0001-aa", [this_process("driver")]).state("failed", reason, owner=owner)
    assert RunView(store, "support", "sft").failure_code() == code


def test_eta_needs_two_steps_and_a_total() -> None:
    rows = [{"step": 1, "at": 0.0}, {"step": 2, "at": 3.0}]
    assert eta_s(rows, 4) == 6.0
    assert eta_s(rows[:1], 4) is None
    assert eta_s(rows, None) is None


def test_listing_and_finding(store: LocalStore) -> None:
    claimed(store)
    RunLog(store, "other", "sft").claim("0001-cc", [GONE])
    RunLog(store, "other", "solo").claim("0001-dd", [GONE])
    assert {(line.team, line.run) for line in list_runs(store)} == {
        ("support", "sft"),
        ("other", "sft"),
        ("other", "solo"),
    }
    assert find_run(store, "solo").team == "other"
    assert find_run(store, "support/sft").team == "support"
    with pytest.raises(UserError, match="several teams"):
        find_run(store, "sft")
    with pytest.raises(UserError, match="no run 'nope'"):
        find_run(store, "nope")


def test_following_reads_to_the_last_line_after_the_end(store: LocalStore) -> None:
    claim = RunLog(store, "support", "sft").claim("0001-aa", [this_process("driver")])
    writer = log_lines(store, "0001-aa", "rank-0", b"one\n")
    log_lines(store, "0001-aa", "rank-1", b"other\n")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            writer.append(b"last words")
            writer.flush()
            claim.state("done")

    found = list(follow_logs(RunView(store, "support", "sft"), rank=0, sleep=pause))
    assert found == [("0001-aa", "rank-0", b"one\n"), ("0001-aa", "rank-0", b"last words")]


class Flaky:
    """A store whose reads fail while `away`."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self.away = 0
        self.uri = store.uri

    def __getattr__(self, name: str) -> object:
        method = getattr(self._store, name)

        def call(*arguments: object) -> object:
            if self.away:
                self.away -= 1
                raise InfraError("the store cannot be reached")
            return method(*arguments)

        return call


def test_following_survives_a_store_that_is_away(store: LocalStore) -> None:
    claim = RunLog(store, "support", "sft").claim("0001-aa", [this_process("driver")])
    writer = log_lines(store, "0001-aa", "rank-0", b"one\n")
    flaky = Flaky(store)
    troubles: list[str] = []
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            flaky.away = 3
        if len(pauses) == 4:
            writer.append(b"two\n")
            writer.flush()
            claim.state("done")

    view = RunView(flaky, "support", "sft")  # type: ignore[arg-type]
    found = list(follow_logs(view, sleep=pause, on_trouble=troubles.append))
    assert [piece.data for piece in found] == [b"one\n", b"two\n"]
    assert len(troubles) == 1


def test_waiting_for_an_end(store: LocalStore) -> None:
    claim = RunLog(store, "support", "sft").claim("0001-aa", [this_process("driver")])
    states: list[RunState] = []
    ended = wait_for_end(
        RunView(store, "support", "sft"),
        on_state=states.append,
        sleep=lambda seconds: claim.state("failed", "user_code_failed") and None,
    )
    assert ended == (RunState.FAILED, "user_code_failed")
    assert states == [RunState.STARTING, RunState.FAILED]


def test_an_unreadable_record_is_an_unknown_fate(store: LocalStore) -> None:
    claimed(store)
    flaky = Flaky(store)
    flaky.away = 10**6
    clock = iter(range(0, 10**6, 100))
    with pytest.raises(UnknownFate, match="could not be read"):
        wait_for_end(
            RunView(flaky, "support", "sft"),  # type: ignore[arg-type]
            sleep=lambda seconds: None,
            now=lambda: float(next(clock)),
        )


def test_a_stop_request_goes_to_the_newest_attempt(store: LocalStore) -> None:
    claimed(store, "0001-aa").claim("0002-bb", [this_process("driver")])
    request_stop(RunView(store, "support", "sft"), by="somebody")
    assert json.loads(store.get(keys.stop("support", "sft", "0002-bb")))["by"] == "somebody"


def test_the_lifecycle() -> None:
    assert RunState.RUNNING.may_become(RunState.DONE)
    assert RunState.STARTING.may_become(RunState.WAITING)
    assert not RunState.DONE.may_become(RunState.STARTING)
    assert not RunState.RUNNING.ended
    assert RunState.INTERRUPTED.ended
