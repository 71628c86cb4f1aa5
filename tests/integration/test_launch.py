"""`warpbeam run` and `submit` as a user types them: real Ray, real S3, processes that are really killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.launch_runs import Workplace, put_data
from tests.integration.ray_head import ray_head
from warpbeam.record.states import RunState
from warpbeam.record.stop import members
from warpbeam.storage import StorageConfig, open_store


@pytest.fixture(scope="module")
def data(s3: StorageConfig) -> StorageConfig:
    put_data(s3)
    return s3


@pytest.fixture
def place(data: StorageConfig, tmp_path: Path) -> Iterator[Workplace]:
    folder = tmp_path / "work"
    folder.mkdir()
    workplace = Workplace(folder, data, "survivor")
    yield workplace
    workplace.close()


def idle_workers(driver_pid: int) -> list[psutil.Process]:
    """Workers of the driver's own Ray that have nothing to do."""
    children = psutil.Process(driver_pid).children(recursive=True)
    return [child for child in children if child.cmdline()[:1] == ["ray::IDLE"]]


def test_a_run_survives_kill_and_interrupt(place: Workplace) -> None:
    place.write_job(max_steps=2000)

    driver = place.start("run", "job.yaml")
    first = place.until(driver, place.committed)
    place.until(driver, lambda: place.view().state()[0] is RunState.RUNNING)
    code, text = place.run("status", "survivor", "--json", log="status.txt")
    assert (code, json.loads(text)["state"]) == (0, "running")
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert place.view().state()[0] is RunState.INTERRUPTED

    place.write_job(max_steps=2000, lr="2e-3")
    code, text = place.run("run", "job.yaml")
    assert (code, "--allow train.lr" in text) == (2, True), text
    assert "0.001 -> 0.002" in text

    path = place.write_job(max_steps=2000)
    path.write_text(path.read_text().replace("stall_after_s: 6", "stall_after_s: 6, spares_after_s: 0"))
    driver = place.start("run", "job.yaml")
    place.until(driver, lambda: len(place.view().attempts()) == 2)  # until then a rank that is left may have saved
    killed_at = place.committed()
    assert killed_at >= first
    place.until(driver, lambda: place.committed() > killed_at)
    assert "it goes on at step" in place.text()
    code, text = place.run("run", "job.yaml", log="second.txt")
    assert (code, "is alive" in text) == (2, True), text

    place.until(driver, lambda: len(idle_workers(driver.pid)) == 2)
    assert {os.sched_getscheduler(idle.pid) for idle in idle_workers(driver.pid)} == {os.SCHED_BATCH}
    for rank in (place.pid_of(0), place.pid_of(1)):
        policies = {thread: os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{rank}/task")}
        assert policies.pop(str(rank)) == os.SCHED_BATCH, "the thread in which Ray looks for signals"
        assert os.SCHED_OTHER in policies.values(), "the loop's thread"
    place.stop_rank(1)
    stopped_at = time.time()
    place.until(driver, lambda: len(place.view().attempts()) == 3)
    assert "no rank has made progress for" in place.text()
    code, text = place.run("logs", "survivor", log="logs.txt")
    assert code == 0
    assert text.count("Timeout (0:00:06)!") == 1, "the rank that waited for the other says where"
    stood_at = place.committed()
    place.until(driver, lambda: place.committed() > stood_at)
    ranks = members(place.view(), place.view().attempts()[-1])
    began = [psutil.Process(rank.pid).create_time() for rank in ranks if rank.role != "driver"]
    assert [at < stopped_at for at in began] == [True, True], "the new ranks are the workers that waited"

    driver.send_signal(signal.SIGINT)
    assert driver.wait(120) == 1, place.text()
    assert "survivor: stopped (interrupted)" in place.text()
    assert place.view().state() == (RunState.STOPPED, "interrupted")
    assert place.view().status().step == place.committed()
    assert len(place.view().attempts()) == 3
    assert place.view().buckets(place.view().attempts()[-1])["hang"] > 6

    code, text = place.run("doctor", "survivor", "--json", log="doctor.txt")
    assert code == 1, text
    found = json.loads(text)["finding"]
    # The stopped rank, not the one that waited.
    assert (found["kind"], found["where"]) == ("slow_or_absent_rank", "rank 1"), text


def test_bad_data_that_is_found_late_ends_a_training_that_has_begun(place: Workplace) -> None:
    """A run that counts steps begins on the first sealed part; that too much was skipped is known at the end."""
    place.name = "spoilt"
    record = json.dumps({"prompt": "one and one", "completion": "two"})
    lines = "".join("{\n" if n % 5 == 0 else f"{record}\n" for n in range(400))
    open_store(place.s3).put("launch/bad.jsonl", lines.encode())
    path = place.write_job(max_steps=100_000)
    asked = path.read_text().replace("launch/train.jsonl", "launch/bad.jsonl")
    path.write_text(asked.replace("  seq_len: 64", "  seq_len: 64\n  on_bad_record: skip"))
    code, text = place.run("run", "job.yaml")
    assert (code, "80 of 400 records are bad" in text) == (2, True), text
    assert place.view().state()[0] is RunState.FAILED


HOOKS = """
import os

class Watch:
    def on_start(self, ctx):
        print("the token is", os.environ["MY_TOKEN"])
"""


def test_a_cluster_finishes_it_once_with_own_code_and_keeps_the_secret(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "canary-7f3a9b"
    pool = tmp_path / "pool.yaml"
    pool.write_text(Path("cluster/pools/local.yaml").read_text() + "secrets: {token: {env: POOL_TOKEN}}\n")
    (place.folder / "hooks.py").write_text(HOOKS)
    (place.folder / ".gitignore").write_text("*.txt\n")
    total = place.committed() + 20
    extra = 'code: {callbacks: ["hooks:Watch"]}\nsecrets: [{env: MY_TOKEN, from: token}]\n'
    place.write_job(max_steps=total, extra=extra)
    monkeypatch.setenv("WARPBEAM_POOL", str(pool))
    with ray_head({"POOL_TOKEN": canary}) as head:
        code, text = place.run("submit", "job.yaml", "--address", head.dashboard, "--allow", "train.max_steps")
        assert code == 0, text
        jobs = httpx.get(f"{head.dashboard}/api/jobs/").text
    view = place.view()
    assert view.state() == (RunState.DONE, "")
    assert place.committed() == total
    summary = view.summary(view.attempts()[-1])
    assert summary is not None
    assert sum(summary["buckets"].values()) == pytest.approx(summary["wall_s"], rel=0.01)
    code, logs = place.run("logs", "survivor")
    assert (code, "the token is [secret]" in logs) == (0, True), logs
    assert canary not in jobs
    record = [view.store.get(info.key) for info in view.store.list("teams/launch/runs/survivor/")]
    assert not any(canary.encode() in content for content in record)

    monkeypatch.setenv("POOL_TOKEN", canary)
    began = time.monotonic()
    code, text = place.run("run", "job.yaml")
    assert (code, "finished already" in text) == (0, True), text
    assert time.monotonic() - began < 30
    place.write_job(max_steps=total, lr="2e-3", extra=extra)
    code, text = place.run("run", "job.yaml")
    assert (code, "is finished, and the job file has changed" in text) == (2, True), text
