from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.launch.jobs import job, pool
from warpbeam.errors import PlatformError
from warpbeam.launch.secrets import resolve

WANTS = {"secrets": [{"env": "HF_TOKEN", "from": "hf-token"}]}


def test_from_the_environment_and_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOL_HF", "value-1")
    assert resolve(job(**WANTS), pool(secrets={"hf-token": {"env": "POOL_HF"}})) == {"HF_TOKEN": "value-1"}
    (tmp_path / "token").write_text("value-2\n")
    assert resolve(job(**WANTS), pool(secrets={"hf-token": {"file": str(tmp_path / "token")}})) == {
        "HF_TOKEN": "value-2"
    }


def test_missing_ones_are_named_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POOL_HF", raising=False)
    with pytest.raises(PlatformError, match="no secret `hf-token`"):
        resolve(job(**WANTS), pool())
    with pytest.raises(PlatformError, match="environment variable POOL_HF is missing"):
        resolve(job(**WANTS), pool(secrets={"hf-token": {"env": "POOL_HF"}}))
    with pytest.raises(PlatformError, match=r"file /nowhere/x is missing"):
        resolve(job(**WANTS), pool(secrets={"hf-token": {"file": "/nowhere/x"}}))
