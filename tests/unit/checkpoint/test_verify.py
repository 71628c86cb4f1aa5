"""Listing and re-hashing: names the bad object, whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.checkpoint.memory_store import MemoryStore
from tests.unit.checkpoint.runs import make_tensors, save, spoil
from warpbeam.checkpoint.log import RunLog
from warpbeam.checkpoint.verify import list_checkpoints, verify
from warpbeam.errors import UserError


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    store = MemoryStore()
    claim = RunLog(store, "team", "run").claim("a1")
    for step, loss in ((10, 2.0), (20, 1.0), (30, 1.0)):
        save(store, tmp_path, make_tensors([(9, 3)]), step=step, claim=claim, state={"eval_loss": loss})
    return store


def test_a_whole_checkpoint_is_ok(store: MemoryStore) -> None:
    hashed: list[str] = []
    found = verify(store, "team", "run", on_file=hashed.append)
    assert found.ok
    assert (found.step, found.files) == (30, 2)
    assert found.size == sum(len(store.objects[key]) for key in hashed)
    assert verify(store, "team", "run", 10).step == 10


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("rank-00001.safetensors", "flip", "is damaged: its sha256 is another"),
        ("rank-00001.safetensors", "cut", "bytes, not"),
        ("rank-00001.safetensors", None, "is missing"),
        ("manifest.json", "flip", "is damaged"),
        ("manifest.json", None, "is missing"),
    ],
)
def test_the_bad_object_is_named(store: MemoryStore, name: str, damage: str | None, says: str) -> None:
    key = f"teams/team/runs/run/checkpoints/00000020/a1/{name}"
    spoil(store, key, damage)
    found = verify(store, "team", "run", 20)
    assert not found.ok
    (fault,) = found.faults
    assert key in fault
    assert says in fault
    assert verify(store, "team", "run", 10).ok


def test_listing_reads_the_log_and_marks_newest_and_best(store: MemoryStore) -> None:
    store.calls.clear()
    rows = list_checkpoints(store, "team", "run")
    assert all("/log/" in key for _, key in store.calls)
    assert [(row.step, row.eval_loss, row.newest, row.best) for row in rows] == [
        (10, 2.0, False, False),
        (20, 1.0, False, True),
        (30, 1.0, True, False),
    ]
    assert rows[0].to_dict()["attempt"] == "a1"
    assert all(row.size > 0 for row in rows)


def test_nothing_to_verify_is_said() -> None:
    assert list_checkpoints(MemoryStore(), "team", "run") == []
    with pytest.raises(UserError, match="no checkpoint"):
        verify(MemoryStore(), "team", "run")
