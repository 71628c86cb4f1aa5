"""A damaged checkpoint is found before anything is changed, and every rank turns to the one before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpoint.memory_store import MemoryStore
from tests.unit.checkpoint.ranks import cut_dim, pieces_of, run_ranks
from tests.unit.checkpoint.runs import make_tensors, restored, save, spoil
from warpbeam.checkpoint.log import RunLog
from warpbeam.checkpoint.manifest import CheckpointBroken, Manifest
from warpbeam.checkpoint.pieces import whole
from warpbeam.checkpoint.restore import CheckpointMismatch, CheckpointReader, open_checkpoint, restore_newest
from warpbeam.errors import UserError


class TestBroken:
    """Three commits; the newest is damaged in some way."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> MemoryStore:
        store = MemoryStore()
        claim = RunLog(store, "team", "run").claim("a1")
        for step in (10, 20, 30):
            save(store, tmp_path, make_tensors([(40, 3)], seed=step), step=step, world=3, claim=claim)
        return store

    def restore(self, store: MemoryStore, tmp_path: Path, world: int = 2) -> tuple[list[Any], list[Any]]:
        events: list[Any] = []

        def rank_main(rank: int, gather: Any, broadcast: Any) -> Any:
            def all_gather(value: Any) -> list[Any]:
                return broadcast(gather(value))  # type: ignore[no-any-return]

            def check(reader: CheckpointReader) -> None:
                assert restored(reader, make_tensors([(40, 3)], seed=reader.step), cut_dim(1), rank, world)

            wanted = [piece for piece, _ in pieces_of(make_tensors([(40, 3)]), cut_dim(1), rank, world)]
            reader = restore_newest(
                store,
                "team",
                "run",
                check,
                cache_dir=tmp_path / "cache",
                rank=rank,
                wanted=wanted,
                all_gather=all_gather,
                on_event=lambda name, fields: events.append((name, fields)),
            )
            return reader.step if reader else None

        return run_ranks(world, rank_main), events

    def key(self, step: int, name: str) -> str:
        return f"teams/team/runs/run/checkpoints/{step:08d}/a1/{name}"

    def test_the_newest_whole_one_is_taken(self, store: MemoryStore, tmp_path: Path) -> None:
        assert self.restore(store, tmp_path) == ([30, 30], [])

    def test_each_file_is_fetched_once_for_all_ranks(self, store: MemoryStore, tmp_path: Path) -> None:
        self.restore(store, tmp_path, world=4)
        fetched = [key for operation, key in store.calls if operation == "download"]
        assert sorted(fetched) == [self.key(30, f"rank-0000{rank}.safetensors") for rank in range(3)]

    @pytest.mark.parametrize(
        ("name", "damage"),
        [
            ("rank-00002.safetensors", None),
            ("rank-00002.safetensors", "flip"),
            ("rank-00001.safetensors", "cut"),
            ("manifest.json", None),
            ("manifest.json", "flip"),
        ],
    )
    def test_damage_falls_back_to_the_commit_before_loudly(
        self, store: MemoryStore, tmp_path: Path, name: str, damage: str | None
    ) -> None:
        spoil(store, self.key(30, name), damage)
        results, events = self.restore(store, tmp_path)
        assert results == [20, 20]
        ((event, fields),) = events
        assert event == "checkpoint_broken"
        assert fields["step"] == 30
        assert self.key(30, name) in fields["what"]

    def test_when_none_is_whole_it_is_an_error_never_a_fresh_start(self, store: MemoryStore, tmp_path: Path) -> None:
        for step in (10, 20, 30):
            spoil(store, self.key(step, "rank-00000.safetensors"), "flip")
        results, events = self.restore(store, tmp_path)
        assert all(isinstance(result, CheckpointBroken) for result in results)
        assert [fields["step"] for _, fields in events] == [30, 20, 10]

    def test_ranged_reads_find_damage_too(self, store: MemoryStore, tmp_path: Path) -> None:
        spoil(store, self.key(30, "rank-00001.safetensors"), "flip")
        manifest = Manifest.from_bytes(store.objects[self.key(30, "manifest.json")], "m")
        reader = CheckpointReader(store, manifest, cache_dir=tmp_path, whole_file_bytes=0)
        pieces = [piece for tensor in manifest.tensors for piece in reader.in_order(tensor)]
        with pytest.raises(CheckpointBroken, match=r"rank-00001.safetensors is damaged"):
            [reader.read(piece) for piece in pieces]

    def test_an_asked_step_is_that_step_or_an_error(self, store: MemoryStore, tmp_path: Path) -> None:
        assert open_checkpoint(store, "team", "run", 20, cache_dir=tmp_path).step == 20
        with pytest.raises(UserError, match="no checkpoint of step 25") as caught:
            open_checkpoint(store, "team", "run", 25, cache_dir=tmp_path)
        assert caught.value.why == "committed steps: 10, 20, 30"
        spoil(store, self.key(20, "rank-00000.safetensors"), None)
        with pytest.raises(CheckpointBroken, match=r"rank-00000.safetensors is missing"):
            open_checkpoint(store, "team", "run", 20, cache_dir=tmp_path)


def test_damage_found_only_while_restoring_still_turns_all_ranks_to_the_one_before(tmp_path: Path) -> None:
    store = MemoryStore()
    claim = RunLog(store, "team", "run").claim("a1")
    for step in (1, 2):
        save(store, tmp_path, make_tensors([(4, 3)], seed=step), step=step, claim=claim)

    def rank_main(rank: int, gather: Any, broadcast: Any) -> int | None:
        def restore(reader: CheckpointReader) -> None:
            if reader.step == 2 and rank == 1:
                raise CheckpointBroken("a ranged read met damage")

        reader = restore_newest(
            store,
            "team",
            "run",
            restore,
            cache_dir=tmp_path / "c",
            rank=rank,
            all_gather=lambda value: broadcast(gather(value)),
        )
        return reader.step if reader else None

    assert run_ranks(3, rank_main) == [1, 1, 1]


def test_another_error_of_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    store = MemoryStore()
    save(store, tmp_path, make_tensors([(4, 3)]))

    def rank_main(rank: int, gather: Any, broadcast: Any) -> None:
        wanted = [whole("layer.0", "weight", (4, 3) if rank == 0 else (3, 4))]
        restore_newest(
            store,
            "team",
            "run",
            lambda reader: None,
            cache_dir=tmp_path / "c",
            rank=rank,
            wanted=wanted,
            all_gather=lambda value: broadcast(gather(value)),
        )

    assert [type(result) for result in run_ranks(2, rank_main)] == [CheckpointMismatch] * 2
