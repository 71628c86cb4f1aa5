"""Checkpoints on real stores, with real processes that are killed while they save."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.checkpoint.ranks import Cut, Tensors, cut_buckets, cut_dim, cut_flat, pieces_of, run_ranks
from tests.unit.checkpoint.runs import save_checkpoint
from warpbeam.checkpoint.export import export_model
from warpbeam.checkpoint.log import AlreadyRunning, Claim, Fenced, RunLog, live_commits
from warpbeam.checkpoint.members import Member, end_leftovers, here, start_time, this_process
from warpbeam.checkpoint.restore import CheckpointReader, open_checkpoint, restore_newest
from warpbeam.checkpoint.retention import retain, sweep
from warpbeam.checkpoint.rng import capture_rng
from warpbeam.checkpoint.save import TrainState
from warpbeam.checkpoint.verify import list_checkpoints, verify, verify_commit
from warpbeam.checkpoint.weights import HfWeights, fetch_model_folder
from warpbeam.storage import ObjectStore, StorageConfig, layout, open_store

TEAM = "team"
# A server process imports torch once; every saver is then forked from it in milliseconds.
SAVERS = multiprocessing.get_context("forkserver")
SAVERS.set_forkserver_preload(["tests.integration.test_checkpoint"])


@pytest.fixture(params=["local", "s3"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> StorageConfig:
    if request.param == "local":
        return StorageConfig(uri=(tmp_path / "store").as_uri(), kind="local")
    return s3_config(request)


def s3_config(request: pytest.FixtureRequest) -> StorageConfig:
    s3: StorageConfig = request.getfixturevalue("s3")
    return replace(s3, uri=f"{s3.uri}/checkpoint-{os.urandom(4).hex()}")


@pytest.fixture
def s3_store(request: pytest.FixtureRequest) -> ObjectStore:
    return open_store(s3_config(request))


def tensors_at(step: int, elements: int = 5000) -> Tensors:
    """The state after a step: what a restore must find again, bit for bit."""
    generator = torch.Generator().manual_seed(step)
    shapes = {"embed.weight": (elements // 50, 50), "norm.weight": (37,), "scale": ()}
    tensors: Tensors = {}
    for name, shape in shapes.items():
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            tensors[kind, name] = torch.randn(shape, generator=generator)
    return tensors


def save_step(
    store: ObjectStore, claim: Claim, step: int, tmp: Path, *, world: int = 2, cut: Cut = cut_flat, elements: int = 5000
) -> None:
    tensors = tensors_at(step, elements)
    results = run_ranks(
        world,
        lambda rank, gather, broadcast: save_checkpoint(
            store,
            claim,
            step=step,
            rank=rank,
            pieces=pieces_of(tensors, cut, rank, world),
            state=TrainState({"step": step, "eval_loss": abs(step - 4.0)}),
            rng=capture_rng(),
            gather=gather,
            broadcast=broadcast,
            tmp=tmp / "shards",
        ),
    )
    for result in results:
        if isinstance(result, Exception):
            raise result


def holds_its_step(reader: CheckpointReader, cut: Cut, rank: int, world: int, elements: int = 5000) -> bool:
    wanted = pieces_of(tensors_at(reader.step, elements), cut, rank, world)
    return all(torch.equal(reader.read(piece), tensor) for piece, tensor in wanted)


def test_saved_at_3_restored_at_1_2_and_5(config: StorageConfig, tmp_path: Path) -> None:
    store = open_store(config)
    save_step(store, RunLog(store, TEAM, "run").claim("a1"), 7, tmp_path, world=3, cut=cut_buckets)
    for world in (1, 2, 5):
        for cut in (cut_flat, cut_dim(1)):
            with open_checkpoint(store, TEAM, "run", cache_dir=tmp_path / "cache") as reader:
                assert all(holds_its_step(reader, cut, rank, world) for rank in range(world))
    manifest = reader.manifest
    with CheckpointReader(store, manifest, cache_dir=tmp_path / "unused", whole_file_bytes=0) as ranged:
        assert all(holds_its_step(ranged, cut_flat, rank, 4) for rank in range(4))
    assert not (tmp_path / "unused").exists()


def saver(config: StorageConfig, attempt: str, tmp: Path, started: Any, environment: dict[str, str]) -> None:
    """Saves step after step, as fast as it can, until it is killed."""
    os.environ.update(environment)  # the fork server may be older than the S3 server
    torch.set_num_threads(1)
    store = open_store(config)
    claim = RunLog(store, TEAM, "run").claim(attempt, [this_process("driver")])
    sweep(store, claim, ttl_s=0)
    reader = restore_newest(store, TEAM, "run", lambda reader: None, cache_dir=tmp / "cache")
    step = reader.step if reader else 0
    while True:
        if step > 0:  # the very first save is left to end, so that there is something to lose
            started.set()
        step += 1
        save_step(store, claim, step, tmp)
        retain(store, claim, keep=2)


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_while_saving_the_newest_commit_is_whole(config: StorageConfig, tmp_path: Path, seed: int) -> None:
    store, chance = open_store(config), random.Random(seed)
    newest = 0
    for attempt in range(4):
        started = SAVERS.Event()
        process = SAVERS.Process(
            target=saver, args=(config, f"a{attempt}", tmp_path, started, dict(os.environ)), daemon=True
        )
        process.start()
        while not started.wait(0.1):
            assert process.is_alive(), f"the saver ended by itself: {process.exitcode}"
        time.sleep(chance.uniform(0.0, 0.7))
        kill(process)
        commits = live_commits(RunLog(store, TEAM, "run").read())
        assert all(verify_commit(store, commit).ok for commit in commits)
        with open_checkpoint(store, TEAM, "run", cache_dir=tmp_path / "check") as reader:
            assert holds_its_step(reader, cut_dim(0), 0, 1)
            assert reader.step >= max(newest, 1), "a committed step was lost"
            newest = reader.step
    claim = RunLog(store, TEAM, "run").claim("last", [this_process("driver")])
    save_step(store, claim, newest + 1, tmp_path)
    retain(store, claim, keep=1)
    sweep(store, claim, ttl_s=0)
    live = {row.manifest.rpartition("/")[0] for row in list_checkpoints(store, TEAM, "run")}
    stored = {info.key.rpartition("/")[0] for info in store.list(layout.checkpoints_prefix(TEAM, "run") + "/")}
    assert stored == live, "objects that no commit names were left behind"


def kill(process: BaseProcess) -> None:
    assert process.is_alive(), f"the saver ended by itself: {process.exitcode}"
    process.kill()
    process.join()


def test_of_two_live_attempts_the_zombie_commits_nothing(s3_store: ObjectStore, tmp_path: Path) -> None:
    cut_off = replace(this_process("driver"), start=1.0)  # to everybody else it looks dead, yet it goes on
    zombie = RunLog(s3_store, TEAM, "run").claim("a1", [cut_off])
    save_step(s3_store, zombie, 1, tmp_path / "1")
    claims: list[Claim] = []

    def rank_main(rank: int, gather: Callable[[Any], Any], broadcast: Callable[[Any], Any]) -> int:
        """Thread 0 is the zombie, thread 1 the new attempt; both save as fast as they can."""
        if rank == 0:
            for step in range(2, 200):
                try:
                    save_step(s3_store, zombie, step, tmp_path / "1")
                except Fenced:
                    for later in (step, step + 1, step + 1000):
                        with pytest.raises(Fenced):
                            save_step(s3_store, zombie, later, tmp_path / "1")
                    return step
        time.sleep(0.2)
        claims.append(RunLog(s3_store, TEAM, "run").claim("a2", [this_process("driver")]))
        for step in range(2, 6):
            save_step(s3_store, claims[0], step, tmp_path / "2")
        return 0

    fenced_at, _ = run_ranks(2, rank_main)
    assert 1 < fenced_at < 200
    entries = RunLog(s3_store, TEAM, "run").read()
    after = [entry.attempt for entry in entries if entry.seq > claims[0].seq]
    assert set(after) == {"a2"}
    assert all(verify_commit(s3_store, commit).ok for commit in live_commits(entries))


@pytest.fixture
def driver_with_rank() -> Iterator[tuple[Member, Member]]:
    """A driver process with a rank that outlives it and ignores SIGTERM."""
    rank = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(120)"
    driver = f"""
import subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-S", "-c", {rank!r}], stdout=subprocess.PIPE, start_new_session=True)
rank.stdout.readline()
print(rank.pid, flush=True)
time.sleep(120)
"""
    process = subprocess.Popen([sys.executable, "-S", "-c", driver], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    members = [Member(role, "here", p, start_time(p), here()) for role, p in (("driver", process.pid), ("rank-0", pid))]
    yield members[0], members[1]
    process.kill()
    process.wait()
    members[1].kill()


def test_after_kill_9_of_the_driver_the_run_is_taken_over_and_leftovers_end(
    s3_store: ObjectStore, driver_with_rank: tuple[Member, Member]
) -> None:
    driver, rank = driver_with_rank
    first = RunLog(s3_store, TEAM, "run").claim("a1", [driver])
    first.state("running", members=[rank])
    with pytest.raises(AlreadyRunning, match=f"pid {driver.pid}"):
        RunLog(s3_store, TEAM, "run").claim("a2", [this_process("driver")])
    os.kill(driver.pid, signal.SIGKILL)
    os.waitpid(driver.pid, 0)
    said: list[str] = []
    second = RunLog(s3_store, TEAM, "run").claim("a2", [this_process("driver")])
    end_leftovers(second.log.members_of("a1"), wait_s=0.5, on_event=said.append)
    assert not rank.is_running()
    assert len(said) == 2
    with pytest.raises(Fenced):
        first.check()
    second.check()


def test_a_damaged_shard_in_s3_is_named_and_passed_over(s3_store: ObjectStore, tmp_path: Path) -> None:
    claim = RunLog(s3_store, TEAM, "run").claim("a1")
    for step in (1, 2):
        save_step(s3_store, claim, step, tmp_path)
    key = f"{layout.checkpoint_prefix(TEAM, 'run', 2, 'a1')}/rank-00001.safetensors"
    data = bytearray(s3_store.get(key))
    data[-1] ^= 1
    s3_store.put(key, bytes(data))
    assert verify(s3_store, TEAM, "run").faults == [f"{key} is damaged: its sha256 is another"]
    assert verify(s3_store, TEAM, "run", 1).ok
    events: list[str] = []
    wanted = [piece for piece, _ in pieces_of(tensors_at(1), cut_flat, 0, 1)]
    reader = restore_newest(
        s3_store,
        TEAM,
        "run",
        lambda reader: None,
        cache_dir=tmp_path / "cache",
        wanted=wanted,
        on_event=lambda name, fields: events.append(f"{name} {fields['step']}"),
    )
    assert reader is not None
    assert reader.step == 1
    assert events == ["checkpoint_broken 2"]


def test_an_export_comes_back_from_s3_through_plain_transformers(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = s3_config(request)
    store = open_store(config)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = AutoModelForCausalLM.from_config(Qwen2Config(vocab_size=96, num_key_value_heads=2, **shape))
    model.config.save_pretrained(tmp_path / "model")
    for path in (tmp_path / "model").iterdir():
        store.upload(path, f"{layout.run_model_prefix(TEAM, 'run')}/{path.name}")
    tensors: Tensors = {("weight", name): tensor.data for name, tensor in model.named_parameters()}
    claim = RunLog(store, TEAM, "run").claim("a1")
    run_ranks(
        2,
        lambda rank, gather, broadcast: save_checkpoint(
            store,
            claim,
            step=3,
            rank=rank,
            pieces=pieces_of(tensors, cut_flat, rank, 2),
            state=TrainState(),
            gather=gather,
            broadcast=broadcast,
            tmp=tmp_path,
        ),
    )
    exported = export_model(store, TEAM, "run", max_file_bytes=30_000)
    assert exported.uri == f"{config.uri}/teams/team/models/run/1"
    folder = fetch_model_folder(exported.uri, config, tmp_path / "cache")
    assert fetch_model_folder(exported.uri, config, tmp_path / "cache") == folder
    loaded = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for (_, name), tensor in tensors.items())
    weights = HfWeights(folder)
    for rank in range(3):
        for piece, tensor in pieces_of(tensors, cut_flat, rank, 3):
            assert torch.equal(weights.read(piece), tensor)
