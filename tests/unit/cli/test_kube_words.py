"""What is refused before any cluster is asked: `submit --kube`, `gate`, `logs --since`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.unit.cli.test_render import JOB
from tests.unit.kube.orders import pool
from warpbeam.cli.logs import seconds
from warpbeam.cli.main import app
from warpbeam.errors import UserError, WarpbeamError
from warpbeam.kube.yaml_text import plain_yaml


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WARPBEAM_POOL", "RAY_ADDRESS", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "pool.yaml").write_text(plain_yaml(pool().to_dict()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def refusal(result: Result) -> str:
    assert isinstance(result.exception, WarpbeamError), result.output
    return str(result.exception)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["submit", "job.yaml"], "neither --address nor --kube"),
        (["submit", "job.yaml", "--context", "lab"], "--context goes with --kube"),
        (["submit", "job.yaml", "--namespace", "n"], "--namespace goes with --kube"),
        (["submit", "job.yaml", "--kube", "--accelerators", "2"], "says nothing about Kubernetes"),
        (["submit", "job.yaml", "--kube", "--pool", "pool.yaml"], "no Kubernetes cluster is configured here"),
        (["submit", "job.yaml", "--kube", "--pool", "pool.yaml", "--namespace", "Bad_Name"], "--namespace Bad_Name"),
        (["submit", "job.yaml", "--kube", "--pool", "pool.yaml", "--accelerators", "48"], "the pool `gpus` has 32"),
        (["gate", "--pool", "pool.yaml"], "--pool goes with --manifests"),
        (["gate", "--manifests"], "has no image for Kubernetes"),
        (["gate"], "no Kubernetes cluster is configured here"),
    ],
)
def test_refusals(words: list[str], wrong: str) -> None:
    assert wrong in refusal(typed(*words))


def test_the_gates_manifests_are_printed() -> None:
    done = typed("gate", "--manifests", "--pool", "pool.yaml", "--namespace", "doors")
    assert done.exit_code == 0, done.output
    assert "kind: Deployment" in done.stdout
    assert "namespace: doors" in done.stdout


def test_a_namespace_of_the_command_line_is_the_teams(place: Path) -> None:
    from warpbeam.cli.kube_order import in_namespace
    from warpbeam.pool import load_pool

    loaded = load_pool(place / "pool.yaml")
    other = in_namespace(loaded, "red", "elsewhere").pool.kubernetes
    assert other is not None
    assert other.teams["red"].namespace == "elsewhere"
    assert in_namespace(loaded, "red", None) is loaded


@pytest.mark.parametrize(("words", "expected"), [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1.5d", 129600)])
def test_times(words: str, expected: float) -> None:
    assert seconds(words) == expected


@pytest.mark.parametrize("words", ["", "m", "-5m", "0", "soon", "nan", "inf"])
def test_no_times(words: str) -> None:
    with pytest.raises(UserError, match="is no time"):
        seconds(words)
