"""Newest and best survive everything: also keep 1, equal losses, and a crash between any two operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpoint.memory_store import MemoryStore
from warpbeam.checkpoint.log import Claim, Entry, Fenced, RunLog, live_commits
from warpbeam.checkpoint.retention import best_commit, decide, retain, sweep
from warpbeam.errors import InfraError
from warpbeam.storage import layout
from warpbeam.storage.store import Unfinished


def entry(step: int, loss: float | None = None, attempt: str = "a1") -> Entry:
    manifest = f"{layout.checkpoint_prefix('team', 'run', step, attempt)}/manifest.json"
    return Entry(step, str(step), "commit", attempt, "now", step, manifest, "0" * 64, {"eval_loss": loss})


def steps(entries: list[Entry]) -> list[int | None]:
    return [found.step for found in entries]


def test_the_best_survives_as_newer_ones_come() -> None:
    losses = {2: 3.0, 4: 1.0, **{step: 2.0 + step / 100 for step in range(6, 21, 2)}}
    held: list[Entry] = []
    for step, loss in losses.items():
        held.append(entry(step, loss))
        held = [commit for commit in held if commit not in decide(held, keep=2)]
        assert held[-1].step == step
    assert steps(held) == [4, 18, 20]


@pytest.mark.parametrize(("keep", "left"), [(1, [4, 20]), (2, [4, 16, 20]), (5, [4, 8, 12, 16, 20])])
def test_keep_counts_the_newest_and_the_best_comes_on_top(keep: int, left: list[int]) -> None:
    commits = [entry(4, 1.0), entry(8, 2.0), entry(12, 2.0), entry(16, 2.0), entry(20, 2.0)]
    gone = decide(commits, keep)
    assert [commit.step for commit in commits if commit not in gone] == left


def test_every_so_many_steps_one_stays_for_ever() -> None:
    commits = [entry(step) for step in range(5, 45, 5)]
    assert steps(decide(commits, keep=2, keep_every=20)) == [5, 10, 15, 25, 30]


def test_equal_losses_are_won_by_the_earlier_step() -> None:
    best = best_commit([entry(2, 1.5), entry(4, 1.5), entry(6, None)])
    assert best is not None
    assert best.step == 2


def test_without_evaluation_there_is_no_best() -> None:
    assert best_commit([entry(2), entry(4)]) is None
    assert steps(decide([entry(2), entry(4), entry(6)], keep=1)) == [2, 4]


@given(st.lists(st.one_of(st.none(), st.sampled_from([1.0, 2.0, 3.0])), min_size=1, max_size=12), st.integers(1, 4))
def test_newest_and_best_are_never_given_up(losses: list[float | None], keep: int) -> None:
    commits = [entry(step, loss) for step, loss in enumerate(losses)]
    gone = decide(commits, keep)
    assert commits[-1] not in gone
    assert best_commit(commits) not in gone
    assert len(commits) - len(gone) <= keep + 1
    assert decide([commit for commit in commits if commit not in gone], keep) == []


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_none_is_refused(keep: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        decide([entry(1)], keep)


def committed(store: MemoryStore, *wanted: tuple[int, float | None]) -> Claim:
    """A run with these (step, loss) committed; two shards each."""
    claim = RunLog(store, "team", "run").claim("a1")
    for step, loss in wanted:
        prefix = layout.checkpoint_prefix("team", "run", step, "a1")
        for name in ("rank-00000.safetensors", "rank-00001.safetensors", "manifest.json"):
            store.put(f"{prefix}/{name}", b"x")
        claim.commit(step, f"{prefix}/manifest.json", "0" * 64, eval_loss=loss)
    return claim


def stored_steps(store: MemoryStore) -> dict[int, int]:
    """How many objects each step still has."""
    counts: dict[int, int] = {}
    for key in store.objects:
        if "/checkpoints/" in key:
            step = int(key.split("/checkpoints/")[1].split("/")[0])
            counts[step] = counts.get(step, 0) + 1
    return counts


def test_deletion_is_logged_before_the_first_object_goes() -> None:
    store = MemoryStore()
    claim = committed(store, (1, 2.0), (2, 3.0), (3, 4.0))
    store.calls.clear()
    assert steps(retain(store, claim, keep=1)) == [2]
    writes = [operation for operation, key in store.calls if operation in ("put_if_absent", "delete")]
    assert writes == ["put_if_absent", "delete", "delete", "delete"]
    assert stored_steps(store) == {1: 3, 3: 3}
    assert steps(live_commits(RunLog(store, "team", "run").read())) == [1, 3]


@pytest.mark.parametrize("crash_at", range(8))
def test_a_crash_anywhere_leaves_every_live_commit_whole_and_the_next_attempt_sweeps(crash_at: int) -> None:
    store = MemoryStore()
    claim = committed(store, (1, 2.0), (2, 3.0), (3, 4.0), (4, 5.0))
    left = crash_at

    def crash(operation: str, key: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    store.before = crash
    with pytest.raises(KeyboardInterrupt):
        retain(store, claim, keep=1)
    store.before = lambda operation, key: None
    counts = stored_steps(store)
    live = steps(live_commits(RunLog(store, "team", "run").read()))
    assert {1, 4} <= set(live)
    assert all(counts[step or 0] == 3 for step in live)
    store.now += 31
    again = RunLog(store, "team", "run").claim("a2")
    sweep(store, again)
    retain(store, again, keep=1)
    assert stored_steps(store) == {1: 3, 4: 3}


def test_a_fenced_attempt_removes_nothing() -> None:
    store = MemoryStore()
    zombie = committed(store, (1, None), (2, None))
    store.now += 31
    RunLog(store, "team", "run").claim("a2")
    with pytest.raises(Fenced):
        retain(store, zombie, keep=1)
    with pytest.raises(Fenced):
        sweep(store, zombie, ttl_s=0)
    assert stored_steps(store) == {1: 3, 2: 3}


def test_a_sweep_takes_old_uncommitted_folders_and_spares_live_young_and_own_ones() -> None:
    store = MemoryStore()
    committed(store, (1, None))
    put = layout.checkpoint_prefix("team", "run", 2, "a1") + "/rank-00000.safetensors"
    store.put(put, b"a crash while saving step 2")
    store.now += 3000
    store.put(layout.checkpoint_prefix("team", "run", 3, "zombie") + "/rank-00000.safetensors", b"still uploading")
    store.now += 1000
    claim = RunLog(store, "team", "run").claim("a2")
    store.put(layout.checkpoint_prefix("team", "run", 4, "a2.2") + "/rank-00000.safetensors", b"own")
    assert sweep(store, claim) == [put.rpartition("/")[0]]
    store.now += 3601
    assert len(sweep(store, claim)) == 1
    assert stored_steps(store) == {1: 3, 4: 1}


def test_storage_that_fails_while_removing_is_an_error_after_the_log_entry() -> None:
    store = MemoryStore()
    claim = committed(store, (1, None), (2, None))

    def away(operation: str, key: str) -> None:
        if operation == "delete":
            raise InfraError("away")

    store.before = away
    with pytest.raises(InfraError):
        retain(store, claim, keep=1)
    assert steps(live_commits(RunLog(store, "team", "run").read())) == [2]


def test_a_sweep_discards_what_fenced_attempts_left_unfinished_and_spares_its_own() -> None:
    store = MemoryStore()
    committed(store, (1, None))
    store.now += 31
    claim = RunLog(store, "team", "run").claim("a2")

    def left(key: str, age_s: float) -> Unfinished:
        store.left.append(Unfinished(key, f"id-{len(store.left)}", age_s))
        return store.left[-1]

    def shard(attempt: str) -> str:
        return layout.checkpoint_prefix("team", "run", 2, attempt) + "/rank-00000.safetensors"

    record = layout.record_prefix("team", "run", "a1") + "/tensorboard/events"
    spared = [left(shard("a2"), 9e9), left(shard("a2.2"), 9e9), left(record, 3599)]
    spared.append(left(layout.run_prefix("team", "runner") + "/checkpoints/00000002/a1/x", 9e9))
    dead = [left(shard("a1"), 0), left(shard("a22"), 0), left(record, 3600)]
    assert sweep(store, claim) == [one.key for one in dead]
    assert store.left == spared


def test_an_attempt_that_is_fenced_while_it_looks_discards_nothing() -> None:
    """What it sees may be the upload of the attempt that has fenced it."""
    store = MemoryStore()
    committed(store, (1, None))
    store.now += 31
    claim = RunLog(store, "team", "run").claim("a2")
    key = layout.checkpoint_prefix("team", "run", 2, "a3") + "/rank-00000.safetensors"

    def look(prefix: str) -> Iterator[Unfinished]:
        store.now += 31
        RunLog(store, "team", "run").claim("a3")
        return iter([Unfinished(key, "id", 0)])

    store.unfinished = look  # type: ignore[method-assign]
    store.discard = lambda left: pytest.fail("a live upload was discarded")  # type: ignore[method-assign,assignment]
    with pytest.raises(Fenced):
        sweep(store, claim)
