"""Every kind on every pool; the same bytes each time; and the repository's examples are what it gives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from tests.unit.kube.orders import CPU, TPU, job, on, order, pool
from warpbeam.cli.main import app
from warpbeam.errors import PlatformError
from warpbeam.kube.order import Kind
from warpbeam.kube.render import asked_for, refuse_placeholders, render
from warpbeam.kube.trains import refuse_what_does_not_train
from warpbeam.pool import GIB, load_pool, parse_pool

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "cluster/examples"
MODEL = "s3://training/warpbeam/teams/support/models/example-8b/1"
# file -> what it is rendered with; `python -m tests.unit.kube.test_render` writes them all
WRITTEN: dict[str, list[str]] = {
    "dgx-h100-rayjob.yaml": ["--pool", "dgx-h100"],
    "dgx-h100-rayservice.yaml": ["--pool", "dgx-h100", "--kind", "rayservice", "--model", MODEL],
    "dgx-h100-tenancy.yaml": ["--pool", "dgx-h100", "--kind", "tenancy"],
    "a100-spot-rayjob.yaml": ["--pool", "a100-spot"],
    "a100-spot-raycronjob.yaml": ["--pool", "a100-spot", "--kind", "raycronjob", "--schedule", "0 3 * * *"],
    "tpu-v5e-raycluster.yaml": ["--pool", "tpu-v5e", "--kind", "raycluster", "--accelerators", "16", "--force"],
}


def command(options: list[str]) -> list[str]:
    return ["render", "cluster/examples/job/job.yaml", "--working-dir", "cluster/examples/job", *options]


@pytest.mark.parametrize("name", WRITTEN)
def test_the_examples_are_what_is_rendered(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path))  # no corrections of this machine's own runs
    done = CliRunner().invoke(app, command(WRITTEN[name]))
    assert done.exit_code == 0, done.output
    assert done.stdout == (EXAMPLES / name).read_text(), "run: python -m tests.unit.kube.test_render"


def test_there_is_no_other_example() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == set(WRITTEN)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("base", [None, TPU, CPU], ids=["gpu", "tpu", "cpu"])
def test_every_kind_on_every_pool(kind: Kind, base: dict[str, Any] | None) -> None:
    made = order(kind, on=on(base) if base else pool())
    if kind is Kind.RAYSERVICE and base is TPU:
        with pytest.raises(PlatformError, match="serves no models"):
            render(made)
        return
    rendered = render(made)
    read = list(YAML(typ="safe").load_all(rendered.text))
    assert read == list(rendered.documents), "comments change nothing"
    assert rendered.text == render(made).text
    for document in rendered.documents:
        assert document["metadata"].get("namespace", "team-red") == "team-red"


def test_what_is_applied_together() -> None:
    kinds = [document["kind"] for document in render(order()).documents]
    assert kinds == ["Role", "RoleBinding", "NetworkPolicy", "RayJob"]
    assert [document["kind"] for document in render(order(Kind.RAYCLUSTER)).documents] == [
        "NetworkPolicy",
        "RayCluster",
    ]


def test_the_quota_that_is_needed_counts_head_and_submitter() -> None:
    rendered = render(order())
    total = asked_for(rendered.documents)
    assert total["nvidia.com/gpu"] == 16
    assert total["cpu"] == 2 * 96 + 4 + 1
    assert total["memory"] == (2 * 960 + 16 + 1) * GIB
    assert "nvidia.com/gpu 16" in rendered.text.splitlines()[3]


def test_notes() -> None:
    kueue = pool({"gang": "kueue", "queue": "q", "network": None})
    elastic = job(resources={"accelerators": {"min": 8, "max": 24}})
    notes = render(order(on=kueue, of=elastic)).notes
    assert any("no NetworkPolicy is rendered" in note for note in notes)
    assert any("rendered at 24 accelerators, and stays there" in note for note in notes)
    assert render(order()).notes == ()


def test_a_pool_without_kubernetes_and_a_team_without_a_place() -> None:
    with pytest.raises(PlatformError, match="says nothing about Kubernetes"):
        order(on=load_pool("local").pool, of=job(resources={"accelerators": 1}))
    with pytest.raises(PlatformError, match="has no place for team `blue`") as caught:
        order(of=job(team="blue"))
    assert "red" in caught.value.why


@pytest.mark.parametrize("name", ["dgx-h100", "a100-spot", "tpu-v5e"])
def test_the_repositorys_images_are_placeholders(name: str) -> None:
    on_file = load_pool(ROOT / f"cluster/pools/{name}.yaml").pool
    made = order(Kind.TENANCY, on=on_file, of=job(team="support"), accelerators=16)
    with pytest.raises(PlatformError, match="is a placeholder"):
        refuse_placeholders(made)
    refuse_placeholders(order())
    copy = next(found for found in render(made).documents if found["kind"] == "ConfigMap")
    assert parse_pool(YAML(typ="safe", pure=True).load(copy["data"]["pool.yaml"])) == on_file


def test_nothing_that_cannot_train_is_rendered_by_itself() -> None:
    for kind in (Kind.RAYJOB, Kind.RAYCRONJOB, Kind.RAYSERVICE):
        with pytest.raises(PlatformError, match="neither trains nor serves"):
            refuse_what_does_not_train(on(TPU), kind)
    refuse_what_does_not_train(on(TPU), Kind.RAYCLUSTER)
    refuse_what_does_not_train(pool(), Kind.RAYJOB)


if __name__ == "__main__":
    os.chdir(ROOT)
    for file, options in WRITTEN.items():
        (EXAMPLES / file).write_text(CliRunner().invoke(app, command(options)).stdout)
        print(EXAMPLES / file)
