"""Preflight over a Ray cluster of two nodes, and as the gate of a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.integration.launch_runs import Workplace, put_data
from tests.integration.preflight_faults import rank_process, throttled
from tests.integration.ray_head import Head, ray_head
from warpbeam.pool import LOCAL_POOL
from warpbeam.preflight.namespaces import allowed
from warpbeam.record.states import RunState
from warpbeam.storage import StorageConfig

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def head(warpbeam_home: Path) -> Iterator[Head]:
    with ray_head({"WARPBEAM_HOME": str(warpbeam_home)}, cpus=2) as found:
        found.add_node("second", cpus=2)
        yield found


def write_pool(folder: Path, **keys: Any) -> Path:
    path = folder / "pool.yaml"
    pool = LOCAL_POOL | {"accelerators_per_node": 2, "cpus_per_worker": 1, "local_disk": str(folder / "disk")} | keys
    with path.open("w") as file:
        YAML().dump(pool, file)
    return path


def preflight(folder: Path, *words: str, **keys: Any) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "warpbeam.cli.main", "preflight", "--pool", str(write_pool(folder, **keys)), *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=180,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_ranks_are_placed_as_a_jobs_are_and_give_everything_back(head: Head, s3: StorageConfig, tmp_path: Path) -> None:
    words = ("--address", head.address, "--quick", "--within", "10", "--json")
    code, answer, errors = preflight(tmp_path, *words, nodes=2)
    assert (code, answer["suspects"]) == (0, []), (answer, errors)
    assert sorted({rank["node"] for rank in answer["measured"]["ranks"]})[-1] == "second"
    assert len(answer["measured"]["links"]) == 6

    code, answer, errors = preflight(tmp_path, *words, "--node", "second", nodes=2)
    assert (code, answer["suspects"]) == (0, []), (answer, errors)
    assert [rank["node"] for rank in answer["measured"]["ranks"]] == ["second", "second"]

    words = ("--address", head.address, "--accelerators", "9", "--start-timeout", "3", "--json")
    code, answer, errors = preflight(tmp_path, *words, nodes=2)
    assert (code, {lost["how"] for lost in answer["measured"]["lost"]}) == (1, {"never joined"}), errors
    assert "9 CPU (4 in the cluster" in answer["measured"]["lost"][0]["what"]

    code, answer, errors = preflight(tmp_path, "--address", head.address, "--node", "third", "--json")
    assert (code, answer["error"]["reason"]) == (2, "no_such_node"), errors


@pytest.mark.skipif(not allowed(), reason="control groups are root's")
def test_a_pool_that_requires_it_lets_no_job_begin_on_a_slow_rank(s3: StorageConfig, tmp_path: Path) -> None:
    put_data(s3)
    place = Workplace(tmp_path, s3, "gated")
    place.write_job(max_steps=5)
    pool = str(write_pool(tmp_path, cpus_per_worker=0.5, preflight="require"))
    try:
        with throttled(0.1, f"wbpf-{os.getpid()}") as put:
            driver = place.start("run", "job.yaml", "--pool", pool)
            put(rank_process(driver.pid, "PreflightRank", within_s=240).pid)
            assert driver.wait(180) == 3, place.text()
        assert re.search(r"preflight failed: rank [01]: matmul .*its control group allows 0.1 of a core", place.text())
        assert place.view().state()[:2] == (RunState.FAILED, "preflight")
        assert place.view().all_metrics() == []

        code, text = place.run("run", "job.yaml", "--pool", pool)
        assert (code, "preflight passed" in text) == (0, True), text
        assert place.view().state()[0] is RunState.DONE
    finally:
        place.close()
