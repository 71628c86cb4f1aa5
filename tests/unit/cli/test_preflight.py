"""`warpbeam preflight` as it is typed, where nothing has to be started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from ruamel.yaml import YAML
from typer.testing import CliRunner

from tests.unit.preflight.made_up import healthy
from warpbeam.cli import preflight_table
from warpbeam.cli.main import app
from warpbeam.cli.preflight import Words, inner_words
from warpbeam.errors import PlatformError, UserError
from warpbeam.pool import LOCAL_POOL
from warpbeam.preflight.expected import Expected
from warpbeam.preflight.judge import judge
from warpbeam.preflight.launch import PreflightFailed
from warpbeam.preflight.launch import Result as Found
from warpbeam.preflight.measured import How, Lost

POOLS = Path(__file__).parents[3] / "cluster/pools"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WARPBEAM_POOL", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["preflight", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "preflight of what?"),
        (("--local", "2", "--address", "auto"), "--address has no meaning beside --local"),
        (("--local", "2", "--node", "x"), "--node has no meaning beside --local"),
        (("--local", "2", "--accelerators", "4"), "--accelerators has no meaning beside --local"),
        (("--nodes", "2", "--address", "auto"), "--nodes goes with --local"),
        (("--team", "x", "--local", "2"), "--team goes with --render"),
        (("--json", "--render", "--pool", str(POOLS / "dgx-h100.yaml")), "--json has no meaning beside --render"),
        (("--address", "ray://head:10001"), "no address that ranks could be conducted over"),
    ],
)
def test_what_contradicts_itself_is_refused(words: tuple[str, ...], said: str) -> None:
    result = run(*words)
    assert isinstance(result.exception, UserError)
    assert said in result.exception.what
    assert result.exception.fix


@pytest.mark.parametrize(("pool", "fix"), [("dgx-h100", "--render"), ("h100", "--address")])
def test_a_pool_of_other_machines_says_how_it_is_reached(pool: str, fix: str) -> None:
    result = run("--pool", str(POOLS / f"{pool}.yaml"))
    assert isinstance(result.exception, PlatformError)
    assert fix in result.exception.fix


def test_the_rayjob_goes_to_stdout_alone() -> None:
    result = run("--pool", str(POOLS / "dgx-h100.yaml"), "--render", "--quick", "--node", "gpu-3")
    assert result.exit_code == 0, result.exception
    documents = list(YAML(typ="safe").load_all(result.stdout))
    (job,) = [document for document in documents if document["kind"] == "RayJob"]
    assert job["spec"]["entrypoint"] == "warpbeam preflight --address auto --accelerators 8 --quick"


def test_only_kubernetes_is_rendered_for() -> None:
    result = run("--pool", str(POOLS / "h100.yaml"), "--render")
    assert isinstance(result.exception, PlatformError)
    assert "says nothing about Kubernetes" in result.exception.what


def test_a_job_of_the_cluster_gets_the_same_words() -> None:
    words = Words(quick=True, within=30.0, start_timeout=120.0, json=True)
    assert inner_words(16, words, node="gpu-1") == [
        *("warpbeam", "preflight", "--address", "auto", "--accelerators", "16", "--node", "gpu-1"),
        *("--quick", "--within", "30", "--start-timeout", "120", "--json"),
    ]


def test_a_pool_may_require_it(place: Path) -> None:
    with (place / "pool.yaml").open("w") as file:
        YAML().dump(LOCAL_POOL | {"preflight": "sometimes"}, file)
    result = run("--pool", "pool.yaml")
    assert isinstance(result.exception, PlatformError)
    assert "preflight" in str(result.exception)


def found_with(*lost: Lost) -> Found:
    measured = healthy()
    measured.lost = list(lost)
    return Found(measured, Expected(), judge(measured, Expected()))


def test_the_gate_lets_a_healthy_pool_pass_and_names_who_holds_it_up() -> None:
    found_with().refuse()
    with pytest.raises(PreflightFailed) as refused:
        found_with(Lost(3, How.DIED, "links", 2.0, "killed")).refuse()
    assert "rank 3" in refused.value.what
    assert (refused.value.exit_code, refused.value.owner, refused.value.reason) == (3, "infra", "preflight")


def test_the_table_shows_every_row_and_the_verdict_last(capsys: pytest.CaptureFixture[str]) -> None:
    preflight_table.show(found_with(Lost(3, How.DIED, "links", 2.0, "killed")))
    text = capsys.readouterr().out
    for word in ("all-reduce", "busbw in GB/s, 8 ranks, all ranks", "1 MiB", "who       rank 3", "owner     infra"):
        assert word in text
    assert text.strip().splitlines()[-1].startswith("preflight failed: rank 3: died")


def test_json_is_what_the_verdict_says() -> None:
    found = found_with()
    value = json.loads(json.dumps(found.verdict.to_dict(found.measured, pool="local")))
    assert (value["pool"], value["measured"]["wanted"]) == ("local", 8)
