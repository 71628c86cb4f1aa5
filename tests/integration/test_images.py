"""The steps of the images, run here: no image can be built on this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = ROOT / "infra/images"


def run(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [SCRIPTS / script, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)


def test_an_environment_of_its_own_serves(tmp_path: Path) -> None:
    """From the pins, without what only training or developing needs; the check finds what it lacks for training."""
    made = run("python.sh", "serve,kube", tmp_path / "made")
    assert made.returncode == 0, made.stderr
    served = run("check.sh", "serve", tmp_path / "made")
    assert served.returncode == 0, served.stderr
    assert "warpbeam" in served.stdout
    trained = run("check.sh", "train", tmp_path / "made")
    assert trained.returncode != 0
    assert "deepspeed" in trained.stderr


def test_this_environment_would_train() -> None:
    """Made by `make install` from the same pins, with the operators that ops.sh builds."""
    done = run("check.sh", "train", ROOT / ".venv")
    assert done.returncode == 0, done.stderr
    built = run("ops.sh", ROOT / ".venv")
    assert built.returncode == 0, built.stderr


def test_pods_have_a_user(tmp_path: Path) -> None:
    made = run("user.sh", tmp_path)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "etc/passwd").read_text().startswith("warpbeam:x:1000:1000:")
    assert (tmp_path / "home/warpbeam").stat().st_uid == 1000
    again = run("user.sh", tmp_path)
    assert again.returncode == 1
    assert "user 1000 already" in again.stderr


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="it changes the machine's packages: only where CI=true")
def test_debian_has_the_packages() -> None:
    done = run("system.sh")
    assert done.returncode == 0, done.stderr
