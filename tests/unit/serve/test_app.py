"""A replica's own rules, without Ray around it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.unit.serve.api import folder
from tests.unit.serve.scripted_engine import ScriptedEngine
from warpbeam.errors import UserError
from warpbeam.serve.app import AppArgs, ModelServer, find_token, served_name
from warpbeam.serve.engine_options import EngineOptions, check_options
from warpbeam.serve.guard import TOKEN_ENV
from warpbeam.serve.service import Service


def test_a_replica_whose_engine_ended_is_unhealthy() -> None:
    engine = ScriptedEngine()
    server = object.__new__(ModelServer)
    server._service = Service("tiny", folder(), engine)
    asyncio.run(server.check_health())
    engine.alive = False
    with pytest.raises(RuntimeError, match="ended"):
        asyncio.run(server.check_health())


def test_a_replica_that_cannot_start_says_why(tmp_path: Path) -> None:
    failure = tmp_path / "failure.json"
    args = AppArgs(model=str(tmp_path / "nothing"), failure_file=str(failure))
    server = object.__new__(ModelServer)
    with pytest.raises(UserError):
        asyncio.run(server.__init__(args.model_dump()))  # type: ignore[misc]
    assert "no model folder" in json.loads(failure.read_text())["what"]


def test_the_token_comes_from_its_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_ENV, raising=False)
    assert find_token(AppArgs(model="m")) is None
    with pytest.raises(UserError, match="without a token"):
        find_token(AppArgs(model="m", require_token=True))
    monkeypatch.setenv(TOKEN_ENV, "from-environment")
    assert find_token(AppArgs(model="m", require_token=True)) == "from-environment"
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert find_token(AppArgs(model="m", token_file=str(file))) == "from-file"
    file.write_text("")
    with pytest.raises(UserError, match="empty"):
        find_token(AppArgs(model="m", token_file=str(file)))


def test_the_name_is_the_models_last_part() -> None:
    assert served_name(AppArgs(model="s3://warpbeam/models/chat/")) == "chat"
    assert served_name(AppArgs(model="/models/chat", name="other")) == "other"


def test_engine_options_are_checked_by_name() -> None:
    assert check_options({"threads": 2}) == EngineOptions(threads=2)
    for bad in ({"thread": 2}, {"threads": 0}, {"cache_gib": -1}, {"dtype": "int4"}):
        with pytest.raises(UserError, match=next(iter(bad))):
            check_options(bad)
