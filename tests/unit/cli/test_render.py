"""`warpbeam render` as it is typed: what it writes, compares and refuses."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from click.testing import Result
from ruamel.yaml import YAML
from typer.testing import CliRunner

from tests.unit.kube.orders import DIGEST, pool
from warpbeam.cli.main import app
from warpbeam.errors import PlatformError, UserError, WarpbeamError
from warpbeam.kube.yaml_text import plain_yaml
from warpbeam.launch.bundle import content_digest
from warpbeam.pool_kubernetes import DIGEST_PLACEHOLDER

JOB = """\
schema: warpbeam/job/v1
name: tiny
team: red
model: {config: {model_type: qwen2, hidden_size: 64}, tokenizer: {train: {vocab_size: 300}}}
data: {train: [{path: "s3://corp/data/*.jsonl"}], seq_len: 64}
train: {method: sft, max_steps: 10, global_batch: 48, lr: 1e-3}
resources: {accelerators: 16}
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WARPBEAM_POOL", raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB)
    (tmp_path / "pool.yaml").write_text(plain_yaml(pool().to_dict()))
    monkeypatch.chdir(folder)
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["render", "job.yaml", "--pool", "../pool.yaml", *words])


def refusal(result: Result, kind: type[WarpbeamError] = UserError) -> str:
    assert isinstance(result.exception, kind), result.output
    return str(result.exception)


def test_the_same_files_give_the_same_bytes(place: Path) -> None:
    first = run()
    assert first.exit_code == 0, first.output
    assert run().stdout == first.stdout
    kinds = [document["kind"] for document in YAML(typ="safe").load_all(first.stdout)]
    assert kinds == ["Role", "RoleBinding", "NetworkPolicy", "RayJob"]
    (place / "more.py").write_text("x = 1\n")
    assert run().stdout != first.stdout, "another bundle"


def test_the_entrypoint_takes_what_the_command_line_said() -> None:
    (*_, job) = YAML(typ="safe").load_all(run("--accelerators", "8").stdout)
    assert job["spec"]["entrypoint"] == "warpbeam run job.yaml --yes --accelerators 8"


def test_a_file_is_written_and_compared(place: Path) -> None:
    assert run("--out", "run.yaml").stdout == ""
    assert (place / "run.yaml").read_text().startswith("# Rendered by")
    assert run("--out", "run.yaml", "--check").exit_code == 0
    (place / "run.yaml").write_text("# other\n")
    assert run("--out", "run.yaml", "--check").exit_code == 1
    assert (place / "run.yaml").read_text() == "# other\n", "--check writes nothing"
    (place / "run.yaml").unlink()
    assert run("--out", "run.yaml", "--check").exit_code == 1


def test_a_placeholder_is_refused_by_the_check(place: Path) -> None:
    text = (place.parent / "pool.yaml").read_text().replace(f"sha256:{DIGEST}", DIGEST_PLACEHOLDER)
    (place.parent / "pool.yaml").write_text(text)
    assert "placeholder" in run("--out", "../run.yaml").stderr
    assert "is a placeholder" in refusal(run("--out", "../run.yaml", "--check"), PlatformError)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--kind", "raycronjob"], "--kind raycronjob needs --schedule"),
        (["--kind", "rayservice"], "--kind rayservice needs --model"),
        (["--schedule", "0 3 * * *"], "--schedule has no meaning for --kind rayjob"),
        (["--kind", "raycronjob", "--schedule", "3"], "is no cron expression"),
        (["--context", "lab"], "--context asks a cluster"),
        (["--accelerators", "48"], "the pool `gpus` has 32"),
    ],
)
def test_odd_words_are_refused(words: list[str], wrong: str) -> None:
    assert wrong in refusal(run(*words))


def test_what_cannot_fit_is_refused_unless_forced(place: Path) -> None:
    wide = "model_type: llama, hidden_size: 16384, num_hidden_layers: 126, num_attention_heads: 128, vocab_size: 128256"
    (place / "job.yaml").write_text(JOB.replace("model_type: qwen2, hidden_size: 64", wide))
    assert "it cannot fit" in refusal(run())
    forced = run("--force")
    assert forced.exit_code == 0, forced.output
    assert "warpbeam run job.yaml --yes --force" in forced.stdout


def test_data_that_would_not_travel_is_refused(place: Path) -> None:
    (place.parent / "data.jsonl").write_text("{}\n")
    (place / "job.yaml").write_text(JOB.replace("s3://corp/data/*.jsonl", "../data.jsonl"))
    assert "does not travel" in refusal(run())


def test_the_bundle_is_put_into_the_store_by_its_content(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.checkpoint.memory_store import MemoryStore

    store = MemoryStore()
    monkeypatch.setattr("warpbeam.storage.connect.open_store", lambda config: store)
    done = run("--upload")
    assert done.exit_code == 0, done.output
    (key,) = [info.key for info in store.list("")]
    (place.parent / "bundle.zip").write_bytes(store.get(key))
    with zipfile.ZipFile(place.parent / "bundle.zip") as archive:
        assert archive.namelist() == ["job.yaml"]
        digest = content_digest(archive)
    assert key == f"teams/red/bundles/{digest}.zip"
    assert f"s3://corp/warpbeam/{key}" in done.stdout
    assert "was there already" in run("--upload").stderr
