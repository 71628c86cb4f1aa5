"""Each fault ends in the right finding of `warpbeam doctor RUN`. The short ones are in `make test`, all of them in
`make inject-long`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.chaos.proxy import S3Proxy
from tests.integration.injections import Scene, control_group, may_limit, rank_that_begins
from tests.integration.launch_runs import put_data
from tests.integration.ray_head import ray_head
from warpbeam.launch.local_logs import log_dir
from warpbeam.record.states import RunState
from warpbeam.storage import StorageConfig

CANARY = "canary-5e1c7700aa93"


@pytest.fixture(scope="module")
def data(s3: StorageConfig) -> StorageConfig:
    put_data(s3)
    return s3


@pytest.fixture
def scene(data: StorageConfig, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    folder = tmp_path / "work"
    folder.mkdir()
    made = Scene(folder, data, request.node.name.removeprefix("test_").replace("_", "-")[:40].strip("-"))
    yield made
    made.close()


needs_memory_group = pytest.mark.skipif(not may_limit("memory"), reason="needs control groups: root, cgroup v1")
needs_cpu_group = pytest.mark.skipif(not may_limit("cpu"), reason="needs control groups: root, cgroup v1")


# --- the short set ----------------------------------------------------------------------------------------------------


def test_wrong_gloo_interface(scene: Scene) -> None:
    scene.write(extra="env: {GLOO_SOCKET_IFNAME: eth77}\n")
    code, text = scene.run("run", "job.yaml", "--force")
    assert code != 0, text
    found = scene.doctor()
    assert found["kind"] == "rank_unreachable", found


HOOKS = """
import torch

def not_a_number(outputs, batch):
    kept = batch.labels != -100
    bad = float("nan") if batch.step >= 3 else 1.0
    return outputs.logits.float().mean() * kept.sum() * bad, kept.sum()
"""


def test_a_loss_that_is_not_a_number(scene: Scene) -> None:
    (scene.folder / "hooks.py").write_text(HOOKS)
    scene.write(extra='code: {loss: "hooks:not_a_number"}\n')
    code, text = scene.run("run", "job.yaml")
    assert code == 1, text
    found = scene.doctor()
    assert (found["kind"], found["owner"]) == ("loss_scale", "ml"), found


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.long
@needs_memory_group
def test_the_black_box_of_a_rank_whose_memory_ran_out(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The post-mortem works after everything local is gone, and holds no secret of the workers' environment."""
    monkeypatch.setenv("PLANTED", CANARY)
    leak = scene.folder / "leak"
    hog = f"ctx.__dict__.setdefault('hog', []).append(b'x' * (1 << 20)) if os.path.exists({str(leak)!r}) else None"
    scene.write_loop(f"print('I know {CANARY}') if batch.step == 3 else {hog}", max_steps=100_000)
    driver = scene.start("run", "job.yaml")
    scene.until_step(driver, 5)
    attempt = scene.view().attempts()[-1]
    with control_group("memory", memory__limit_in_bytes=str(64 << 20)) as group:
        (group / "cgroup.procs").write_text(str(scene.pid_of(1)))  # what it takes from here on counts
        leak.touch()
        scene.until_failed(driver)
    shutil.rmtree(log_dir(("launch", scene.name, attempt)), ignore_errors=True)
    shutil.rmtree(os.environ["WARPBEAM_HOME"] + "/runs", ignore_errors=True)

    found = scene.doctor()
    assert (found["kind"], found["where"]) == ("host_oom", "rank 1"), found
    view = scene.view()
    boxes = [info.key for info in view.store.list(f"teams/launch/runs/{scene.name}/record/{attempt}/black-box/")]
    assert len(boxes) == 2, "the driver's and this machine's"
    for key in boxes:
        (scene.folder / "box.tar.gz").write_bytes(view.store.get(key))
        subprocess.run(["tar", "xzf", "box.tar.gz"], cwd=scene.folder, check=True)
    names = {path.name for path in scene.folder.iterdir()}
    assert {"rank-0.env", "rank-1.env", "rank-1.stacks.txt", "metrics.jsonl", "events.jsonl", "rank-0.log"} <= names
    kept = [path for path in scene.folder.iterdir() if path.name not in ("loop.py", "box.tar.gz", "__pycache__")]
    assert not [path.name for path in kept if path.is_file() and CANARY in path.read_text(errors="replace")]
    assert "PLANTED" not in (scene.folder / "rank-1.env").read_text()
    assert "MASTER_ADDR=" in (scene.folder / "rank-1.env").read_text()
    assert "I know [secret]" in (scene.folder / "rank-0.log").read_text()


@pytest.mark.long
def test_a_rank_that_never_joins(scene: Scene) -> None:
    """It is told while the launch still waits: in `status`, by the doctor that the driver has asked."""
    scene.write(train="launch_after_s: 8")
    driver = scene.start("run", "job.yaml")
    worker = scene.until(driver, lambda: rank_that_begins(driver, 1), every_s=0.005)
    worker.send_signal(signal.SIGSTOP)
    try:
        said = scene.until(
            driver, lambda: scene.view().attempts() and scene.view().diagnosis(scene.view().attempts()[-1])
        )
        found = scene.doctor()
        status = json.loads(scene.ask("status", scene.name, "--json"))
    finally:
        worker.send_signal(signal.SIGCONT)
        scene.end(driver)
    assert (found["kind"], said["finding"]["kind"]) == ("slow_or_absent_rank", "slow_or_absent_rank")
    assert found["where"] == "rank 1"
    assert status["doctor"]["finding"]["where"] == found["where"]


@pytest.mark.long
def test_a_stopped_rank(scene: Scene) -> None:
    scene.write(max_steps=100_000)
    driver = scene.start("run", "job.yaml")
    scene.until_step(driver, 30)
    began = time.monotonic()
    scene.stop_rank(1)
    scene.until_failed(driver)
    assert time.monotonic() - began < 75, "noticed within 45 s, not the ten minutes of the job's limit"
    found = scene.doctor()
    assert (found["kind"], found["where"], found["rule"]) == (
        "slow_or_absent_rank",
        "rank 1",
        "rank_without_heartbeats",
    )


@pytest.mark.long
@needs_cpu_group
def test_a_slow_rank(scene: Scene) -> None:
    scene.write(max_steps=100_000)
    driver = scene.start("run", "job.yaml")
    scene.until_step(driver, 10)
    with control_group("cpu", cpu__cfs_quota_us="5000", cpu__cfs_period_us="50000") as group:
        (group / "cgroup.procs").write_text(str(scene.pid_of(1)))
        scene.until(driver, lambda: scene.events("monitor"))
        found = scene.doctor()  # while it runs
        scene.end(driver)
    assert (found["kind"], found["where"]) == ("straggler", "rank 1"), found


@pytest.mark.long
def test_divergent_collectives(scene: Scene) -> None:
    fault = "dist.all_reduce(torch.ones(8 if ctx.rank == 0 else 3)) if batch.step == 12 else None"
    scene.write_loop(fault, max_steps=100_000)
    driver = scene.start("run", "job.yaml")
    scene.until_failed(driver)
    found = scene.doctor()
    assert (found["kind"], found["owner"]) == ("collective_divergence", "ml"), found


@pytest.mark.long
def test_a_collective_that_one_rank_leaves_out(scene: Scene) -> None:
    fault = "dist.all_gather([torch.ones(8), torch.ones(8)], torch.ones(8)) if ctx.rank and batch.step == 12 else None"
    scene.write_loop(fault, max_steps=100_000)
    driver = scene.start("run", "job.yaml")
    scene.until_failed(driver)
    found = scene.doctor()
    assert (found["kind"], found["owner"]) == ("collective_divergence", "ml"), found


@pytest.mark.long
def test_one_rank_with_fewer_batches(scene: Scene) -> None:
    scene.write_loop("if ctx.rank == 1 and batch.step == 12: return", max_steps=100_000)
    driver = scene.start("run", "job.yaml")
    scene.until_failed(driver)
    found = scene.doctor()
    assert (found["kind"], found["where"]) == ("data_exhaustion", "rank 1"), found


@pytest.mark.long
def test_a_master_port_that_is_taken(scene: Scene) -> None:
    """torchrun's own processes have no record yet: the doctor reads what they have printed."""
    logs = scene.folder / "logs"
    logs.mkdir()
    scene.write()
    with socket.socket() as taken, (logs / "rank-0.log").open("wb") as output:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
        command += [f"--master-port={taken.getsockname()[1]}", "-m", "warpbeam.train", "job.yaml"]
        assert subprocess.run(command, cwd=scene.folder, stdout=output, stderr=output, timeout=300).returncode != 0
    found = json.loads(scene.ask("doctor", "--logs", str(logs), "--json"))["finding"]
    assert found["kind"] == "port_collision", found


@pytest.mark.long
def test_a_full_disk(scene: Scene, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True)
    try:
        pool = tmp_path / "pool.yaml"
        pool.write_text(Path("cluster/pools/local.yaml").read_text() + f"local_disk: {small}\n")
        scene.write()
        code, text = scene.run("run", "job.yaml", "--pool", str(pool))
        assert code == 2, text
        assert scene.view().state()[0] is RunState.FAILED
        assert scene.doctor()["kind"] == "disk_full"
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.long
def test_a_store_that_takes_no_checkpoints(scene: Scene, s3: StorageConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads stand still for as long as anybody waits for them; nothing takes that for ranks that hang."""
    server = urlsplit(s3.endpoint_url or "")
    access = json.loads(Path(os.environ["WARPBEAM_HOME"], "s3", "state.json").read_text())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", access["secret_key"])
    with S3Proxy((server.hostname or "", server.port or 0)) as proxy:
        proxy.stall("save")
        pool = scene.folder / "pool.yaml"
        storage = f'storage: {{kind: s3, uri: "s3://warpbeam", endpoint_url: "{proxy.url}"}}\n'
        pool.write_text(Path("cluster/pools/local.yaml").read_text().partition("storage:")[0] + storage)
        scene.write(max_steps=100_000)
        driver = scene.start("run", "job.yaml", "--pool", str(pool))
        scene.until_failed(driver)
    assert not [event for event in scene.events("monitor") if event["certain"]]
    found = scene.doctor()
    assert found["kind"] == "object_store", found


OTHER_VERSION = """
import json, ray
from ray._raylet import GcsClient
from ray._private import ray_constants
gcs = GcsClient(address=%r)
key, space = ray_constants.CLUSTER_METADATA_KEY, ray_constants.KV_NAMESPACE_CLUSTER
told = json.loads(gcs.internal_kv_get(key, space))
gcs.internal_kv_put(key, json.dumps({**told, %s}).encode(), True, space)
"""


@pytest.mark.long
@pytest.mark.parametrize("other", ["'ray_version': '2.9.3'", "'python_version': '3.9.18'"])
def test_another_version_on_the_cluster(scene: Scene, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head says that it is of another release, as one from another image would."""
    scene.name = "version-" + other.split("_")[0].strip("'")
    scene.write()
    with ray_head({}) as head:
        subprocess.run([sys.executable, "-c", OTHER_VERSION % (head.address, other)], check=True)
        monkeypatch.setenv("RAY_ADDRESS", head.address)
        code, text = scene.run("run", "job.yaml")
        assert code != 0, text
    assert scene.doctor()["kind"] == "ray_version"


POISON = """
import torch

def render(record, tokenizer):
    ids = list(range(5, 25))
    if "17+17" in str(record):
        ids[7] = 100_000  # beyond any vocabulary
    return {"input_ids": ids, "loss_mask": [1] * len(ids)}
"""


@pytest.mark.long
def test_a_poisoned_sample(scene: Scene) -> None:
    (scene.folder / "hooks.py").write_text(POISON)
    scene.write(extra='code: {render: "hooks:render"}\n', max_steps=200)
    code, text = scene.run("run", "job.yaml")
    assert code != 0, text
    found = scene.doctor()
    assert (found["kind"], found["owner"]) == ("tokenizer_vocab", "ml"), found
