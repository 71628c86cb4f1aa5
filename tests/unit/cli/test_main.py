from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "ray", "transformers", "deepspeed", "pyarrow", "numpy", "kubernetes")
WATCH = f"""
import sys
sys.argv[0] = "warpbeam"
from warpbeam.cli.main import main
code = 0
try:
    main()
except SystemExit as end:
    code = end.code
print("HEAVY", [module for module in {HEAVY} if module in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def warpbeam(*arguments: str, home: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    pool = home / "pool.yaml"
    if not pool.exists():
        home.mkdir(parents=True, exist_ok=True)
        text = (ROOT / "cluster/pools/local.yaml").read_text()
        text = text.replace("kind: embedded", "kind: local").replace("uri: s3://warpbeam", f"uri: file://{home}/store")
        pool.write_text(text)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "WARPBEAM_HOME": str(home), "WARPBEAM_POOL": str(pool)}
    command = [sys.executable, "-c", WATCH, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    if check:
        assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["plan", "jobs/sft/job.yaml"],
        ["plan", "jobs/sft/job.yaml", "--emit", "deepspeed"],
        ["list"],
        ["version", "--check"],
        ["models"],
        ["submit", "--help"],
        ["gate", "--help"],
    ],
)
def test_light_verbs_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    assert "HEAVY []" in warpbeam(*arguments, home=tmp_path).stderr


def test_help_groups_the_verbs(tmp_path: Path) -> None:
    text = warpbeam("--help", home=tmp_path).stdout
    for panel in ("Train", "Look before", "Watch", "Use the model", "This machine"):
        assert f" {panel} ─" in text


def test_plan_as_json(tmp_path: Path) -> None:
    plan = json.loads(warpbeam("plan", "jobs/sft/job.yaml", "--json", home=tmp_path).stdout)
    assert plan["run"] == "quickstart-sft"
    assert plan["deepspeed"]["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["plan", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["status", "nope"], 2, "there is no run 'nope'"),
        (["rnu"], 2, "Did you mean 'run'?"),
        (["verify", "x@y"], 2, "is not a step"),
        (["plan", "jobs/sft/job.yaml", "--accelerators", "7"], 2, "global_batch"),
        (["plan", "jobs/sft/job.yaml", "--engine", "here"], 2, "--engine goes with --model"),
        (["plan", "jobs/sft/job.yaml", "--method", "pretrain"], 2, "--method goes with --model"),
    ],
)
def test_user_mistakes(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = warpbeam(*arguments, home=tmp_path, check=False)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_as_json(tmp_path: Path) -> None:
    done = warpbeam("status", "[bold]nope", "--json", home=tmp_path, check=False)
    error = json.loads(done.stdout)["error"]
    assert error["owner"] == "ml"
    assert "[bold]nope" in error["what"]


def test_markup_in_values_is_not_interpreted(tmp_path: Path) -> None:
    assert "'[red]nope'" in warpbeam("status", "[red]nope", home=tmp_path, check=False).stderr


@pytest.mark.parametrize(("output", "code", "words"), [("/dev/full", 3, "could not be written"), ("&-", 0, "")])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_output_that_takes_nothing(output: str, code: int, words: str, more: list[str], tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "warpbeam.cli.main", "plan", "jobs/sft/job.yaml", *more])
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "WARPBEAM_HOME": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", f"{command} >{output}"], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert not [line for line in ("Traceback", "itself failed") if line in done.stderr]


def test_a_bug_of_ours_leaves_a_file_not_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpbeam.cli import errors

    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path))
    assert errors.report_crash(KeyError("[b]oops"), as_json=False) == 3
    (saved,) = (tmp_path / "crashes").iterdir()
    assert "KeyError: '[b]oops'" in saved.read_text()


@pytest.mark.parametrize("arguments", [["plan", "--tp", "x"], ["plan", "--modle", "y"], ["plann"], ["plan", "--tp"]])
def test_a_wrong_option_is_json_where_json_is_asked_for(arguments: list[str], tmp_path: Path) -> None:
    done = warpbeam(*arguments, "--json", home=tmp_path, check=False)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["reason"], "--help" in error["fix"]) == (2, "bad_arguments", True)


def test_a_reader_of_json_that_is_gone_is_no_failed_job(tmp_path: Path) -> None:
    warpbeam("version", home=tmp_path)
    command = [sys.executable, "-m", "warpbeam.cli.main", "plan", "jobs/sft/job.yaml", "--json"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "WARPBEAM_POOL": str(tmp_path / "pool.yaml")}
    script = f"{shlex.join(command)} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], env=environment, cwd=ROOT, check=False, capture_output=True)
    assert done.returncode == 141, done.stderr
