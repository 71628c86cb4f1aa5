"""`warpbeam run` and `submit` as a user types them: real Ray, real S3, processes that are really killed."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.integration.launch_runs import Workplace, put_data
from tests.integration.ray_head import ray_head
from warpbeam.record.states import RunState
from warpbeam.storage import StorageConfig


@pytest.fixture(scope="module")
def data(s3: StorageConfig) -> StorageConfig:
    put_data(s3)
    return s3


def test_a_run_survives_kill_and_interrupt_and_finishes_once(data: StorageConfig, tmp_path: Path) -> None:
    place = Workplace(tmp_path, data, "survivor")
    place.write_job(max_steps=2000)

    driver = place.start("run", "job.yaml")
    first = place.until(driver, place.committed)
    code, text = place.run("status", "survivor", "--json", log="status.txt")
    assert code == 0
    assert json.loads(text)["state"] == "running"
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert place.view().state()[0] is RunState.INTERRUPTED

    place.write_job(max_steps=2000, lr="2e-3")
    code, text = place.run("run", "job.yaml")
    assert (code, "--allow train.lr" in text) == (2, True), text
    assert "0.001 -> 0.002" in text

    place.write_job(max_steps=2000)
    killed_at = place.committed()
    assert killed_at >= first
    driver = place.start("run", "job.yaml")
    place.until(driver, lambda: place.committed() > killed_at)
    assert "it goes on at step" in place.text()
    code, text = place.run("run", "job.yaml", log="second.txt")
    assert (code, "is alive: running" in text) == (2, True), text
    driver.send_signal(signal.SIGINT)
    assert driver.wait(120) == 1, place.text()
    assert "survivor: stopped (interrupted)" in place.text()
    state, reason = place.view().state()
    assert (state, reason) == (RunState.STOPPED, "interrupted")
    stopped_at = place.committed()
    assert place.view().status().step == stopped_at

    total = stopped_at + 20
    place.write_job(max_steps=total)
    code, text = place.run("run", "job.yaml", "--allow", "train.max_steps", "--json")
    assert code == 0, text
    end = json.loads(text[text.index("\n{") :])
    assert (end["state"], end["step"], end["committed_step"]) == ("done", total, total)
    assert sum(end["buckets"].values()) == pytest.approx(end["wall_s"], rel=0.01)
    rows = [row["step"] for row in place.view().all_metrics() if "loss_metrics/global_avg_loss" in row]
    assert rows[-1] == total

    began = time.monotonic()
    code, text = place.run("run", "job.yaml")
    assert (code, "finished already" in text) == (0, True), text
    assert time.monotonic() - began < 30
    assert len(place.view().attempts()) == 3
    place.write_job(max_steps=total, lr="2e-3")
    code, text = place.run("run", "job.yaml")
    assert (code, "is finished, and the job file has changed" in text) == (2, True), text


HOOKS = """
import os

def render(record, tokenizer):
    return {"messages": record["messages"]}

class Watch:
    def on_start(self, ctx):
        print("the token is", os.environ["MY_TOKEN"])

    def on_step(self, ctx, row):
        if ctx.step_done == 3 and ctx.rank == 1:
            complain(ctx.step_done)

def complain(step):
    raise ValueError(f"step {step} is not to my taste")
"""


def test_a_submitted_job_runs_own_code_keeps_secrets_and_exits_as_the_job_does(
    data: StorageConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "canary-7f3a9b"
    pool = tmp_path / "pool.yaml"
    pool.write_text(Path("cluster/pools/local.yaml").read_text() + "secrets: {token: {env: POOL_TOKEN}}\n")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "hooks.py").write_text(HOOKS)
    (folder / ".gitignore").write_text("*.txt\n")
    place = Workplace(folder, data, "submitted")
    place.write_job(
        extra='code: {render: "hooks:render", callbacks: ["hooks:Watch"]}\nsecrets: [{env: MY_TOKEN, from: token}]\n'
    )
    monkeypatch.setenv("WARPBEAM_POOL", str(pool))
    with ray_head({"POOL_TOKEN": canary}) as address:
        code, text = place.run("submit", "job.yaml", "--address", address)
        assert code == 1, text
        assert "error: rank 1: ValueError: step 3 is not to my taste" in text
        assert "hooks.py:16 in complain" in text
        assert "Traceback" not in text
        jobs = httpx.get(f"{address}/api/jobs/").text
    view = place.view()
    assert view.state() == (RunState.FAILED, "user_code_failed")
    code, logs = place.run("logs", "submitted")
    assert code == 0
    assert "the token is [secret]" in logs
    assert "Traceback" in logs, "the record has what the terminal leaves out"
    assert canary not in jobs
    record = [view.store.get(info.key) for info in view.store.list("teams/launch/runs/submitted/")]
    assert not any(canary.encode() in content for content in record)
