"""`warpbeam lint-env` as it is typed, and what `plan` and `run` make of the same findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from ruamel.yaml import YAML
from typer.testing import CliRunner

from warpbeam.cli.main import app
from warpbeam.errors import PlatformError, UserError
from warpbeam.pool import LOCAL_POOL

JOB = {
    "schema": "warpbeam/job/v1",
    "name": "tiny",
    "model": {"config": {"model_type": "qwen2", "hidden_size": 64}, "tokenizer": {"train": {"vocab_size": 300}}},
    "data": {"train": [{"path": "data.jsonl"}], "seq_len": 64},
    "train": {"method": "sft", "max_steps": 10, "global_batch": 4, "lr": 1e-3},
    "resources": {"accelerators": 2},
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WARPBEAM_POOL", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {}, {})
    return tmp_path


def write(folder: Path, job_env: dict[str, str], pool_env: dict[str, str]) -> None:
    def put(name: str, content: dict[str, Any]) -> None:
        with (folder / name).open("w") as file:
            YAML().dump(content, file)

    put("job.yaml", JOB | {"env": job_env})
    put("pool.yaml", LOCAL_POOL | {"accelerators_per_node": 2, "env": pool_env})


def run(*words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--pool", "pool.yaml"])


def test_nothing_wrong_is_said_and_is_fine() -> None:
    result = run("lint-env", "job.yaml")
    assert (result.exit_code, "nothing is wrong" in result.output) == (0, True)


def test_a_warning_is_told_and_is_fine(place: Path) -> None:
    write(place, {}, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    result = run("lint-env", "--json")
    (finding,) = json.loads(result.output)["findings"]
    assert (result.exit_code, finding["level"], finding["source"]) == (0, "warning", "pool env")


@pytest.mark.parametrize(
    ("job_env", "pool_env", "code"),
    [
        ({"GLOO_SOCKET_IFNAME": "nowhere9"}, {}, UserError.exit_code),
        ({}, {"GLOO_SOCKET_IFNAME": "nowhere9"}, PlatformError.exit_code),
    ],
)
def test_the_exit_code_says_whose_error_it_is(
    place: Path, job_env: dict[str, str], pool_env: dict[str, str], code: int
) -> None:
    write(place, job_env, pool_env)
    result = run("lint-env", "job.yaml")
    assert (result.exit_code, "nowhere9, which this machine does not have" in result.output) == (code, True)


def test_plan_says_it_and_run_refuses_it_unless_forced(place: Path) -> None:
    (place / "data.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    write(place, {"GLOO_SOCKET_IFNAME": "nowhere9"}, {})
    said = run("plan", "job.yaml")
    assert (said.exit_code, "nowhere9" in said.output) == (0, True)
    refused = CliRunner().invoke(app, ["run", "job.yaml", "--pool", "pool.yaml", "--dry-run"])
    assert isinstance(refused.exception, UserError)
    assert (refused.exception.reason, "--force" in (refused.exception.fix or "")) == ("bad_environment", True)
