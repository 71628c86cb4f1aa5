"""DeepSpeed's compiled operators: what is missing is said before anything is spent, a half build counts as none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from warpbeam.errors import PlatformError
from warpbeam.train import ops


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "ops"))
    monkeypatch.setenv("PATH", os.environ["PATH"])  # prepare_environment() adds to it
    return tmp_path / "ops"


def finished(folder: Path, op: str = "cpu_adam") -> Path:
    (folder / op).mkdir(parents=True)
    (folder / op / f"{op}.so").write_bytes(b"")
    stamp = folder / op / ops.STAMP
    stamp.write_text(json.dumps(ops._fingerprint(op)))
    return stamp


def test_what_each_offload_needs() -> None:
    assert ops.ops_for("none") == ()
    assert ops.ops_for("cpu") == ("cpu_adam",)
    assert "async_io" in ops.ops_for("nvme")


def test_a_build_counts_with_its_stamp_only(folder: Path) -> None:
    assert not ops.is_built("cpu_adam")
    stamp = finished(folder)
    assert ops.is_built("cpu_adam")
    stamp.write_text(stamp.read_text().replace('"torch": "', '"torch": "0.'))
    assert not ops.is_built("cpu_adam")
    stamp.unlink()  # killed in the middle of a build
    (folder / "cpu_adam" / "lock").touch()
    assert not ops.is_built("cpu_adam")


def test_a_finished_build_needs_no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(folder)
    monkeypatch.setattr(ops, "missing_tools", lambda: ["everything"])
    ops.ensure(["cpu_adam"])


def test_missing_tools_are_named_with_the_node(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ops.sysconfig, "get_path", lambda name: str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(PlatformError) as raised:
        ops.ensure(["cpu_adam"])
    error = raised.value
    assert error.exit_code == 3
    assert error.owner == "platform"
    assert ops.platform.node() in error.what
    assert "C++ compiler" in error.what
    assert "ninja" in error.what
    assert "python -m warpbeam.train.ops cpu_adam" in error.fix


def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    folder.parent.joinpath("ops").write_text("a file where the folder should be")
    with pytest.raises(PlatformError, match="cannot be written"):
        ops.ensure(["cpu_adam"])


def test_a_rank_never_builds(folder: Path) -> None:
    with pytest.raises(PlatformError, match="is not built on"):
        ops.load(["cpu_adam"])


def test_the_environments_ninja_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    ops.prepare_environment()
    ops.prepare_environment()
    assert os.environ["PATH"].split(os.pathsep) == [ops.sysconfig.get_path("scripts"), "/usr/bin"]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert ops.main(["no_such_op"]) == 2
    assert "cpu_adam" in capsys.readouterr().err
