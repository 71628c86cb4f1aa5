"""`warpbeam calibrate` as it is typed: what was measured, what changes, and that the next plan says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.launch.test_calibrate import rows, view
from tests.unit.plan.jobs import BASE
from warpbeam.cli.main import app


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pool = {
        "schema": "warpbeam/pool/v1",
        "name": "planned",
        "accelerator": {"kind": "cpu", "memory_gib": 8},
        "nodes": 1,
        "accelerators_per_node": 2,
        "cpus_per_worker": 0.5,
        "storage": {"kind": "local", "uri": f"file://{tmp_path}/store"},
    }
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump(pool))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(BASE | {"resources": {"accelerators": 2}}))
    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WARPBEAM_POOL", str(tmp_path / "pool.yaml"))
    monkeypatch.setattr("warpbeam.record.view.find_run", lambda store, run, team: view(rows()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_what_it_learned(place: Path) -> None:
    result = CliRunner().invoke(app, ["calibrate", "finished"])
    assert result.exit_code == 0, result.output
    assert "measured 1.10 GiB" in result.output
    assert "compared    zero3, micro-batch 8, nothing recomputed; 16 rows of 128" in result.output
    assert "step time x" in result.output
    assert str(place / "home" / "calibration" / "planned.json") in result.output
    plan = CliRunner().invoke(app, ["plan", "job.yaml"])
    assert "calibrated    by finished on this pool" in plan.output
    found = json.loads(CliRunner().invoke(app, ["plan", "job.yaml", "--json"]).stdout)
    assert found["step_time_s"]["total"] == pytest.approx(0.1)
    assert found["memory_per_gpu_gib"]["total"] == pytest.approx(1.1)


def test_json(place: Path) -> None:
    found = json.loads(CliRunner().invoke(app, ["calibrate", "finished", "--json"]).stdout)
    assert found["corrected"]["step_s"] == pytest.approx(found["measured"]["step_s"])
    assert found["correction"]["runs"] == ["finished"]
