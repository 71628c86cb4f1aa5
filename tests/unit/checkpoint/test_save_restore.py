"""What any world saved in any layout, any other reads in any other, bit for bit; and how saving and reading fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.checkpoint.memory_store import MemoryStore
from tests.unit.checkpoint.ranks import Cut, cut_buckets, cut_dim, cut_flat, local, pieces_of
from tests.unit.checkpoint.runs import make_tensors, restored, save, save_checkpoint
from warpbeam.checkpoint.log import Fenced, RunLog, live_commits
from warpbeam.checkpoint.pieces import Box, Piece, Range, whole
from warpbeam.checkpoint.restore import (
    CheckpointMismatch,
    CheckpointReader,
    open_checkpoint,
    read_manifest,
    restore_newest,
)
from warpbeam.checkpoint.rng import capture_rng
from warpbeam.checkpoint.save import SavedCheckpoint, SaveFailed, TrainState
from warpbeam.errors import InfraError, RunFailed

CUTS: list[Cut] = [cut_flat, cut_buckets, cut_dim(0), cut_dim(1), cut_dim(2)]


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
    names = [name for name in names if not name.startswith("starting,")]
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


def test_a_fenced_attempt_learns_it_before_rank_0_uploads(tmp_path: Path) -> None:
    store, log = MemoryStore(), RunLog(MemoryStore(), "team", "run")
    log.store = store
    zombie = log.claim("a1")
    store.now += 31
    RunLog(store, "team", "run").claim("a2")
    results = save(store, tmp_path, make_tensors([(4, 3)]), claim=zombie)
    assert all(isinstance(result, Fenced) for result in results)
    assert not [call for call in store.calls if call[0] == "upload" and call[1].endswith("rank-00000.safetensors")]


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
    (saved, _) = save(store, tmp_path, tensors, claim=claim, number=2)
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
