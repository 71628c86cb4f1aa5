"""The log's promises: no two writers, nothing lost to a lost answer, nothing from a zombie."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from tests.unit.checkpoint.memory_store import MemoryStore
from warpbeam.checkpoint.log import (
    AlreadyRunning,
    Claim,
    Fenced,
    LogBroken,
    RunLog,
    live_commits,
)
from warpbeam.checkpoint.members import this_process
from warpbeam.checkpoint.schema import SchemaTooNew
from warpbeam.errors import InfraError
from warpbeam.storage import layout

ELSEWHERE = replace(this_process("driver"), host="other", boot_id="another-boot/pid:[1]")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def open_log(store: MemoryStore) -> RunLog:
    return RunLog(store, "team", "run")


def commit(claim: Claim, step: int) -> None:
    claim.commit(step, f"checkpoints/{step}/{claim.attempt}/manifest.json", "0" * 64)


def test_entries_are_numbered_without_gaps_and_read_back(store: MemoryStore) -> None:
    claim = open_log(store).claim("a1", [this_process("driver")])
    claim.total(100, tokens=5)
    commit(claim, 10)
    claim.state("stopped", "asked")
    entries = open_log(store).read()
    assert [(e.seq, e.kind, e.attempt) for e in entries] == [
        (0, "claim", "a1"),
        (1, "total", "a1"),
        (2, "commit", "a1"),
        (3, "state", "a1"),
    ]
    assert entries[0].members == [this_process("driver")]
    assert open_log(store).total() == 100
    assert open_log(store).state() == ("stopped", "asked")
    raw = json.loads(store.objects[layout.log_key("team", "run", 2)])
    assert raw["schema"] == "warpbeam/log/v1"
    assert set(raw) >= {"writer", "seq", "nonce", "kind", "attempt", "step", "manifest", "sha256", "at"}


def test_an_empty_log_says_so(store: MemoryStore) -> None:
    log = open_log(store)
    assert (log.read(), log.state(), log.total(), log.newest_commit()) == ([], ("waiting", ""), None, None)


def test_a_reader_sees_what_others_append(store: MemoryStore) -> None:
    reader = open_log(store)
    claim = open_log(store).claim("a1")
    assert len(reader.read()) == 1
    commit(claim, 1)
    assert len(reader.read()) == 2


def test_a_listing_that_lags_is_only_a_hint(store: MemoryStore) -> None:
    claim = open_log(store).claim("a1")
    for step in range(5):
        commit(claim, step)

    class Lagging(MemoryStore):
        def list(self, prefix: str):  # type: ignore[no-untyped-def]
            return iter([info for info in super().list(prefix) if not info.key.endswith(("3", "4", "5"))])

    lagging = Lagging()
    lagging.objects = store.objects
    assert [entry.seq for entry in open_log(lagging).read()] == [0, 1, 2, 3, 4, 5]


def test_a_zombie_commits_deletes_and_states_nothing(store: MemoryStore) -> None:
    zombie = open_log(store).claim("a1", [ELSEWHERE])
    commit(zombie, 1)
    store.now += 31  # no heartbeat for longer than the lease
    fresh = open_log(store).claim("a2")
    kept = zombie.log.newest_commit()
    assert kept is not None
    for act in (
        lambda: commit(zombie, 2),
        lambda: commit(zombie, 1_000_000),
        lambda: zombie.delete(kept),
        lambda: zombie.state("done"),
        lambda: zombie.total(7),
        zombie.check,
    ):
        with pytest.raises(Fenced, match="replaced by a2"):
            act()
    commit(fresh, 2)
    assert [(e.attempt, e.step) for e in live_commits(open_log(store).read())] == [("a1", 1), ("a2", 2)]


def test_a_claim_that_lands_between_check_and_append_still_fences(store: MemoryStore) -> None:
    slow = open_log(store).claim("a1", [ELSEWHERE])
    store.now += 31

    def other_claims_first(operation: str, key: str) -> None:
        store.before = lambda operation, key: None
        open_log(store).claim("a2")
        raise InfraError("the connection broke")  # ours never arrived

    store.before = other_claims_first
    with pytest.raises(Fenced):
        commit(slow, 5)
    assert live_commits(open_log(store).read()) == []


def test_a_lost_answer_is_settled_by_the_nonce(store: MemoryStore) -> None:
    claim = open_log(store).claim("a1")

    def lose_the_answer(operation: str, key: str) -> None:
        store.after = lambda operation, key: None
        raise InfraError("timed out")

    store.after = lose_the_answer
    commit(claim, 1)
    assert [entry.step for entry in live_commits(open_log(store).read())] == [1]


def test_a_retry_inside_the_client_that_meets_its_own_entry_has_won(store: MemoryStore) -> None:
    claim = open_log(store).claim("a1")
    create = store.put_if_absent
    store.put_if_absent = lambda key, data: create(key, data) and create(key, data)  # type: ignore[method-assign]
    commit(claim, 1)
    assert [entry.step for entry in live_commits(open_log(store).read())] == [1]


def test_a_request_that_never_arrived_is_an_error(store: MemoryStore) -> None:
    claim = open_log(store).claim("a1")

    def away(operation: str, key: str) -> None:
        raise InfraError("the store is away")

    store.before = away
    with pytest.raises(InfraError, match="away"):
        commit(claim, 1)
    store.before = lambda operation, key: None
    assert live_commits(open_log(store).read()) == []


def test_a_run_that_is_alive_here_is_refused_with_who_where_since(store: MemoryStore) -> None:
    open_log(store).claim("a1", [this_process("driver")])
    with pytest.raises(AlreadyRunning, match=rf"pid {this_process('x').pid} on .* since 20") as caught:
        open_log(store).claim("a2", [ELSEWHERE])
    assert caught.value.exit_code == 2
    assert "warpbeam stop run" in caught.value.fix


def test_a_driver_may_start_the_next_attempt_of_its_own_run(store: MemoryStore) -> None:
    open_log(store).claim("a1", [this_process("driver")])
    open_log(store).claim("a2", [this_process("driver")])


def test_elsewhere_a_run_lives_while_its_heartbeat_is_young(store: MemoryStore) -> None:
    open_log(store).claim("a1", [ELSEWHERE])
    store.now += 29
    with pytest.raises(AlreadyRunning):
        open_log(store).claim("a2")
    store.put(layout.heartbeat_key("team", "run", "a1", "rank-0"), b"{}")
    store.now += 29
    with pytest.raises(AlreadyRunning):
        open_log(store).claim("a2")
    store.now += 1
    open_log(store).claim("a2")


def test_a_finished_attempt_is_not_alive_whatever_its_processes_do(store: MemoryStore) -> None:
    open_log(store).claim("a1", [this_process("driver")]).state("done")
    open_log(store).claim("a2", [ELSEWHERE])


def test_a_pid_of_another_start_time_is_a_dead_driver(store: MemoryStore) -> None:
    dead = replace(this_process("driver"), start=1.0)
    open_log(store).claim("a1", [dead])
    open_log(store).claim("a2", [this_process("driver")])


def test_of_two_that_start_at_once_one_is_refused(store: MemoryStore) -> None:
    late = open_log(store)
    create = store.put_if_absent

    def racing(key: str, data: bytes) -> bool:
        store.put_if_absent = create  # type: ignore[method-assign]
        open_log(store).claim("a2", [ELSEWHERE])
        return create(key, data)

    store.put_if_absent = racing  # type: ignore[method-assign]
    with pytest.raises(AlreadyRunning, match="a2"):
        late.claim("a1", [this_process("driver")])
    assert [entry.attempt for entry in open_log(store).read()] == ["a2"]


def test_a_newer_schema_is_refused_in_words(store: MemoryStore) -> None:
    open_log(store).claim("a1")
    key = layout.log_key("team", "run", 0)
    store.objects[key] = store.objects[key].replace(b"log/v1", b"log/v2")
    with pytest.raises(SchemaTooNew, match="newer than this warpbeam understands"):
        open_log(store).read()


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"\xff", b'{"schema": "warpbeam/log/v1"}'])
def test_a_damaged_entry_is_named(store: MemoryStore, damage: bytes) -> None:
    open_log(store).claim("a1")
    store.objects[layout.log_key("team", "run", 0)] = damage
    with pytest.raises(LogBroken, match="log/000000000000"):
        open_log(store).read()


def test_a_hole_in_the_log_is_an_error_not_an_end(store: MemoryStore) -> None:
    claim = open_log(store).claim("a1")
    commit(claim, 1)
    commit(claim, 2)
    del store.objects[layout.log_key("team", "run", 1)]
    with pytest.raises(LogBroken, match="000000000001 is missing"):
        open_log(store).read()


def test_the_index_hint_is_replaced_on_change(store: MemoryStore) -> None:
    def hints() -> list[tuple[str, int]]:
        keys = [key for key in store.objects if key.startswith(layout.index_prefix("team"))]
        return [(hint.state, hint.step) for hint in map(layout.parse_index_key, keys) if hint]

    claim = open_log(store).claim("a1")
    assert hints() == [("starting", 0)]
    claim.state("running")
    commit(claim, 20)
    assert hints() == [("running", 20)]
    claim.state("done")
    assert hints() == [("done", 20)]


def test_the_log_keeps_the_lifecycle(store: MemoryStore) -> None:
    claim = open_log(store).claim("a1")
    claim.state("running")
    with pytest.raises(ValueError, match="cannot become starting: it is running"):
        claim.state("starting")
    claim.state("done")
    with pytest.raises(ValueError, match="it is done"):
        claim.state("failed")
    open_log(store).claim("a2").state("starting")


def test_a_hint_that_cannot_be_written_costs_nothing(store: MemoryStore) -> None:
    def no_hints(operation: str, key: str) -> None:
        if "/index/" in key:
            raise InfraError("throttled")

    store.before = no_hints
    commit(open_log(store).claim("a1"), 1)
    assert len(live_commits(open_log(store).read())) == 1


def test_a_claim_travels_as_json_to_the_ranks(store: MemoryStore) -> None:
    claim = open_log(store).claim("a1", [this_process("driver")])
    in_rank_0 = Claim.from_dict(store, json.loads(json.dumps(claim.to_dict())))
    in_rank_0.state("running", members=[this_process("rank-0")])
    commit(in_rank_0, 1)
    assert [member.role for member in claim.log.members_of("a1")] == ["driver", "rank-0"]


def test_the_newest_commit_is_the_logs_not_the_highest_step(store: MemoryStore) -> None:
    first = open_log(store).claim("a1", [ELSEWHERE])
    commit(first, 10)
    commit(first, 20)
    store.now += 31
    second = open_log(store).claim("a2")  # it found step 20 broken and went on from 10
    commit(second, 15)
    newest = open_log(store).newest_commit()
    assert newest is not None
    assert newest.step == 15


def test_the_same_attempt_name_twice_is_still_two_writers(store: MemoryStore) -> None:
    first = open_log(store).claim("a1", [ELSEWHERE])
    with pytest.raises(AlreadyRunning):
        open_log(store).claim("a1", [this_process("driver")])
    store.now += 31
    second = open_log(store).claim("a1", [this_process("driver")])
    with pytest.raises(Fenced):
        commit(first, 1)
    commit(second, 1)


def test_threads_may_share_a_log(store: MemoryStore) -> None:
    claim = open_log(store).claim("a1")
    threads = [threading.Thread(target=commit, args=(claim, step)) for step in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.seq for entry in claim.log.read()] == list(range(21))
    assert sorted(entry.step or 0 for entry in live_commits(claim.log.read())) == list(range(20))
