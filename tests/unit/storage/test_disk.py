from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path

import pytest

from warpbeam.errors import InfraError
from warpbeam.storage.disk import disk_errors, replace_file, replacing


def test_a_full_disk_is_named() -> None:
    # /dev/full answers every write with the real ENOSPC
    path = Path("/dev/full")
    with pytest.raises(InfraError, match="disk full: /dev/full") as caught, disk_errors(path):
        path.write_bytes(b"x")
    assert caught.value.reason == "disk_full"
    assert "are free now" in caught.value.why
    assert pickle.loads(pickle.dumps(caught.value)).reason == "disk_full"


def test_other_errors_name_the_path(tmp_path: Path) -> None:
    path = tmp_path / "file" / "below"
    (tmp_path / "file").touch()
    with pytest.raises(InfraError, match=str(path)), disk_errors(path):
        path.open("wb")


def test_replacing_keeps_the_old_file_when_the_block_fails(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail_half_way() -> None:
        with replacing(path) as temp:
            temp.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_secret_file_is_never_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    path.chmod(0o644)
    replace_file(path, b"secret", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b"secret"
