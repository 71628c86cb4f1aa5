"""`warpbeam doctor` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from warpbeam.cli.main import app
from warpbeam.doctor.rules import RULES
from warpbeam.errors import UserError

SHM = "2026-11-30 12:04:07,000 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-1Ys (size 7340384)\n"
WATCHDOG = "[Rank {0}] Watchdog caught collective operation timeout\n"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "rank-0.log").write_text(SHM)
    for rank in range(1, 8):
        (tmp_path / f"rank-{rank}.log").write_text(WATCHDOG.format(rank))
    return tmp_path


def test_the_answer_in_lines(logs: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--logs", str(logs)])
    assert result.exit_code == 1, result.output
    lines = {line[:10].strip(): line[10:].strip() for line in result.output.splitlines()}
    assert lines["cause"].startswith("/dev/shm in the container is too small")
    assert lines["where"] == "rank 0        first seen 12:04:07"
    assert lines["owner"] == "platform team"
    assert 'rank-0.log: "' in lines["evidence"]
    assert lines["not it"] == "7 ranks: watchdog timeouts: consequence"
    assert lines["retry"] == "no use before the fix"
    assert lines["more"] == "warpbeam doctor --explain shm_segment_refused"


def test_the_answer_as_json(logs: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--logs", str(logs), "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert found["answer"] == "cause"
    assert found["finding"]["kind"] == "shm_too_small"
    assert found["finding"]["confidence"] >= 0.9
    assert found["read"]["files"] == 8


def test_timeouts_alone_are_unknown(logs: Path) -> None:
    (logs / "rank-0.log").unlink()
    result = CliRunner().invoke(app, ["doctor", "--logs", str(logs)])
    assert result.exit_code == 4, result.output
    assert "nothing in 7 files" in result.output


def test_quiet_logs_are_healthy(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("step 1 loss 2.0\nstep 2 loss 1.9\n")
    result = CliRunner().invoke(app, ["doctor", "--logs", str(tmp_path)])
    assert (result.exit_code, result.output[:7]) == (0, "healthy")


def test_what_a_log_holds_is_never_obeyed_by_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("CUDA out of memory. \x1b[2J\x1b]0;title\x07 [red]text[/red]\n")
    output = CliRunner().invoke(app, ["doctor", "--logs", str(tmp_path)]).output
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "[red]text[/red]" in output


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "one thing at a time"),
        (["--logs", "nowhere"], "cannot be read as logs"),
        (["--bundle", "nowhere.tar"], "cannot be read as a bundle"),
        (["--explain", "no_such"], "there is no rule"),
        (["a-run", "--logs", "."], "one thing at a time"),
    ],
)
def test_wrong_input_is_told(arguments: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert isinstance(result.exception, UserError)
    assert what in result.exception.what
    assert result.exception.fix


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--logs", str(tmp_path)])
    assert isinstance(result.exception, UserError)


def test_every_rule_explains_itself() -> None:
    listed = CliRunner().invoke(app, ["doctor", "--explain"]).output
    for rule in RULES:
        assert rule.name in listed
    told = CliRunner().invoke(app, ["doctor", "--explain", "gpu_xid"]).output
    for label in ("cause", "owner", "meaning", "confirm", "do", "retry"):
        assert f"\n{label:<10}" in told
