"""What any world saved in any layout, any other reads in any other, bit for bit; and how saving and reading fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.checkpoint.memory_store import MemoryStore
from tests.unit.checkpoint.ranks import Cut, Tensors, cut_buckets, cut_dim, cut_flat, local, pieces_of, run_ranks
from warpbeam.checkpoint.log import Claim, Fenced, RunLog, live_commits
from warpbeam.checkpoint.manifest import CheckpointBroken, Manifest
from warpbeam.checkpoint.pieces import Box, Piece, Range, whole
from warpbeam.checkpoint.restore import (
    CheckpointMismatch,
    CheckpointReader,
    open_checkpoint,
    read_manifest,
    restore_newest,
)
from warpbeam.checkpoint.rng import capture_rng
from warpbeam.checkpoint.save import SavedCheckpoint, SaveFailed, TrainState, save_checkpoint
from warpbeam.errors import InfraError, RunFailed, UserError

CUTS: list[Cut] = [cut_flat, cut_buckets, cut_dim(0), cut_dim(1), cut_dim(2)]


def make_tensors(shapes: list[tuple[int, ...]], seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for number, shape in enumerate(shapes):
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            tensors[kind, f"layer.{number}"] = torch.randn(shape, generator=generator)
    tensors["buffer", "counter"] = torch.tensor([3, 1 << 40])
    return tensors


def save(
    store: MemoryStore,
    tmp: Path,
    tensors: Tensors,
    *,
    step: int = 1,
    world: int = 2,
    cut: Cut = cut_flat,
    claim: Claim | None = None,
    state: dict[str, Any] | None = None,
) -> list[Any]:
    claim = claim or RunLog(store, "team", "run").claim("a1")
    return run_ranks(
        world,
        lambda rank, gather, broadcast: save_checkpoint(
            store,
            claim,
            step=step,
            rank=rank,
            pieces=pieces_of(tensors, cut, rank, world),
            state=TrainState(state or {"step": step}, {"layer.0": step}, job_digest="j", data_fingerprint="d"),
            rng={"torch": torch.full((4,), rank, dtype=torch.uint8)},
            gather=gather,
            broadcast=broadcast,
            tmp=tmp / "shards",
        ),
    )


def restored(reader: CheckpointReader, tensors: Tensors, cut: Cut, rank: int, world: int) -> bool:
    """Whether the rank reads exactly its part of every tensor."""
    wanted = list(pieces_of(tensors, cut, rank, world))
    reader.fetch([piece for piece, _ in wanted])
    return all(torch.equal(reader.read(piece), expected) for piece, expected in wanted)


shapes = st.lists(st.lists(st.integers(1, 7), max_size=3).map(tuple), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shapes=shapes,
    worlds=st.tuples(st.integers(1, 5), st.integers(1, 6)),
    cuts=st.tuples(st.sampled_from(CUTS), st.sampled_from(CUTS)),
    whole_file_bytes=st.sampled_from([0, 2**30]),
)
def test_any_layout_at_any_world_reads_any_other(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[tuple[int, ...]],
    worlds: tuple[int, int],
    cuts: tuple[Cut, Cut],
    whole_file_bytes: int,
) -> None:
    store, tmp = MemoryStore(), tmp_path_factory.mktemp("case")
    tensors = make_tensors(shapes)
    (saved, *_) = save(store, tmp, tensors, world=worlds[0], cut=cuts[0])
    assert isinstance(saved, SavedCheckpoint), saved
    manifest = read_manifest(store, live_commits(RunLog(store, "team", "run").read())[-1])
    with CheckpointReader(store, manifest, cache_dir=tmp / "cache", whole_file_bytes=whole_file_bytes) as reader:
        assert all(restored(reader, tensors, cuts[1], rank, worlds[1]) for rank in range(worlds[1]))


def test_all_ranks_get_the_same_answer_and_the_manifest_tells_all(tmp_path: Path) -> None:
    store, tensors = MemoryStore(), make_tensors([(4, 3)])
    results = save(store, tmp_path, tensors, world=3, state={"step": 1, "eval_loss": 2.5, "scaler": None, "world": 3})
    assert len(set(results)) == 1
    with open_checkpoint(store, "team", "run", cache_dir=tmp_path / "cache") as reader:
        assert reader.state == {"step": 1, "eval_loss": 2.5, "scaler": None, "world": 3}
        manifest = reader.manifest
        assert (manifest.step, manifest.world, manifest.optimizer_steps) == (1, 3, {"layer.0": 1})
        assert (manifest.job_digest, manifest.data_fingerprint) == ("j", "d")
        assert [reader.rng(rank)["torch"].tolist() for rank in range(3)] == [[0] * 4, [1] * 4, [2] * 4]  # type: ignore[index]
        assert reader.rng(3) is None
        assert reader.has("buffer", "counter")
    commit = live_commits(RunLog(store, "team", "run").read())[0]
    assert commit.extra == {"size": results[0].size, "eval_loss": 2.5}
    assert results[0].size == sum(len(data) for key, data in store.objects.items() if key.endswith(".safetensors"))
    assert list((tmp_path / "shards").iterdir()) == []


def test_shards_then_manifest_then_commit(tmp_path: Path) -> None:
    store = MemoryStore()
    save(store, tmp_path, make_tensors([(4, 3)]), world=3)
    names = [
        key.rpartition("/")[2] for operation, key in store.calls if operation in ("upload", "put", "put_if_absent")
    ]
    names = [name for name in names if not name.startswith("running,")]
    assert sorted(names[1:4]) == [f"rank-0000{rank}.safetensors" for rank in range(3)]
    assert names[4:] == ["manifest.json", "000000000001"]


def test_when_one_rank_fails_all_raise_its_error_and_nothing_is_committed(tmp_path: Path) -> None:
    store = MemoryStore()

    def refuse(operation: str, key: str) -> None:
        if key.endswith("rank-00001.safetensors"):
            raise InfraError("disk full: somewhere", reason="disk_full")

    store.before = refuse
    results = save(store, tmp_path, make_tensors([(4, 3)]), world=3)
    assert [type(result) for result in results] == [InfraError] * 3
    assert {result.reason for result in results} == {"disk_full"}
    assert live_commits(RunLog(store, "team", "run").read()) == []
    assert list((tmp_path / "shards").iterdir()) == []


def test_an_unexpected_error_keeps_its_words_and_names_the_rank(tmp_path: Path) -> None:
    store = MemoryStore()

    def bug(operation: str, key: str) -> None:
        if key.endswith("rank-00002.safetensors"):
            raise ZeroDivisionError("a bug")

    store.before = bug
    for result in save(store, tmp_path, make_tensors([(4, 3)]), world=3):
        assert isinstance(result, SaveFailed)
        assert (result.what, result.why) == ("rank 2 failed to save its checkpoint", "ZeroDivisionError: a bug")


def test_a_fenced_attempt_learns_it_before_it_uploads(tmp_path: Path) -> None:
    store, log = MemoryStore(), RunLog(MemoryStore(), "team", "run")
    log.store = store
    zombie = log.claim("a1")
    store.now += 31
    RunLog(store, "team", "run").claim("a2")
    results = save(store, tmp_path, make_tensors([(4, 3)]), claim=zombie)
    assert all(isinstance(result, Fenced) for result in results)
    assert not [call for call in store.calls if call[0] == "upload"]


def test_a_second_try_of_the_same_step_overwrites_nothing(tmp_path: Path) -> None:
    store, tensors = MemoryStore(), make_tensors([(4, 3)])
    claim = RunLog(store, "team", "run").claim("a1")

    def lose_the_commit(operation: str, key: str) -> None:
        if key.endswith("/manifest.json"):
            raise InfraError("away")

    store.before = lose_the_commit
    assert isinstance(save(store, tmp_path, tensors, claim=claim)[0], InfraError)
    before = dict(store.objects)
    store.before = lambda operation, key: None
    (saved, _) = save(store, tmp_path, tensors, claim=claim)
    assert saved.manifest == "teams/team/runs/run/checkpoints/00000001/a1.2/manifest.json"
    shards = {key for key in before if key.endswith(".safetensors")}
    assert len(shards) == 2
    assert all(store.objects[key] == before[key] for key in shards)


def half(piece: Piece) -> Piece:
    return Piece(piece.name, piece.kind, piece.shape, Range(0, piece.numel // 2))


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda pieces: [(half(piece), tensor[:6]) for piece, tensor in pieces], "elements 6-12 are in no piece"),
        (lambda pieces: [*pieces, (Piece("layer.0", "weight", (4, 3), Range(0, 1)), torch.zeros(1))], "in two pieces"),
        (lambda pieces: [*pieces, (Piece("layer.0", "weight", (3, 4), Range(0, 1)), torch.zeros(1))], "shape or dtype"),
    ],
)
def test_a_strategy_that_loses_or_doubles_elements_commits_nothing(tmp_path: Path, spoil: Any, fault: str) -> None:
    store, tensors = MemoryStore(), make_tensors([(4, 3)])
    pieces = spoil([pair for pair in pieces_of(tensors, cut_flat, 0, 1) if pair[0].kind != "buffer"])
    with pytest.raises(RunFailed, match=fault):
        save_checkpoint(
            store,
            RunLog(store, "team", "run").claim("a1"),
            step=1,
            rank=0,
            pieces=pieces,
            state=TrainState(),
            tmp=tmp_path,
        )
    assert live_commits(RunLog(store, "team", "run").read()) == []


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


def spoil(store: MemoryStore, key: str, damage: str | None) -> None:
    """Remove an object, flip a bit in its middle, or cut its end off."""
    data = bytearray(store.objects.pop(key))
    if damage == "flip":
        data[len(data) // 2] ^= 1
        store.objects[key] = bytes(data)
    if damage == "cut":
        store.objects[key] = bytes(data[:-1])


def test_nothing_saved_is_a_fresh_start(tmp_path: Path) -> None:
    store = MemoryStore()
    RunLog(store, "team", "run").claim("a1")
    assert restore_newest(store, "team", "run", lambda reader: None, cache_dir=tmp_path) is None


def test_a_changed_model_is_told_from_a_broken_checkpoint(tmp_path: Path) -> None:
    store = MemoryStore()
    save(store, tmp_path, make_tensors([(4, 3)]))
    with open_checkpoint(store, "team", "run", cache_dir=tmp_path / "c") as reader:
        with pytest.raises(CheckpointMismatch, match=r"\[3, 4\] now, and \[4, 3\] in the checkpoint of step 1"):
            reader.read(whole("layer.0", "weight", (3, 4)))
        with pytest.raises(CheckpointMismatch, match="no weight 'other'"):
            reader.fetch([whole("other", "weight", (3, 4))])


def test_a_read_tensor_outlives_the_reader(tmp_path: Path) -> None:
    store, tensors = MemoryStore(), make_tensors([(4, 3)])
    save(store, tmp_path, tensors)
    with open_checkpoint(store, "team", "run", cache_dir=tmp_path / "c") as reader:
        box = Box((1, 0), (2, 2))
        read = reader.read(Piece("layer.0", "weight", (4, 3), box))
    assert torch.equal(read, local(tensors["weight", "layer.0"], box))


def test_real_random_states_survive_a_save(tmp_path: Path) -> None:
    store = MemoryStore()
    states = {name: state.clone() for name, state in capture_rng().items()}
    save_checkpoint(
        store,
        RunLog(store, "t", "r").claim("a"),
        step=1,
        rank=0,
        pieces=[],
        state=TrainState(),
        rng=states,
        tmp=tmp_path,
    )
    with open_checkpoint(store, "t", "r", cache_dir=tmp_path / "c") as reader:
        found = reader.rng(0)
    assert found is not None
    assert all(torch.equal(found[name], states[name]) for name in states)


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
