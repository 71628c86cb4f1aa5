from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from warpbeam.errors import PlatformError
from warpbeam.storage import StorageConfig, seaweedfs
from warpbeam.storage.embedded import EmbeddedServer, home, server_for, stop_server
from warpbeam.storage.processes import identify, is_running

_PORTS = {name: 20_000 + n for n, name in enumerate(("master.port", "s3.port", "admin.port"))}


def test_the_command_is_closed_to_the_outside_and_holds_no_secret(tmp_path: Path) -> None:
    words = seaweedfs.command(
        Path("/bin/weed"), data_dir=tmp_path, socket_dir=tmp_path, credentials=tmp_path / "s3.json", ports=_PORTS
    )
    for flag in ("-ip.bind=127.0.0.1", "-master.telemetry=false", "-s3.autoCreateBucket=false", "-webdav=false"):
        assert flag in words
    assert f"-s3.config={tmp_path / 's3.json'}" in words
    assert "-s3.port=20001" in words


def test_the_servers_environment_keeps_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("HF_TOKEN", "canary")
    environment = seaweedfs.environment(tmp_path)
    assert "canary" not in environment.values()
    assert environment["HOME"] == str(tmp_path)
    assert environment["GOMEMLIMIT"]


def test_credential_file() -> None:
    value = json.loads(seaweedfs.credential_file("id", "secret"))
    assert value["identities"][0]["credentials"] == [{"accessKey": "id", "secretKey": "secret"}]


def test_the_binary_comes_with_the_package() -> None:
    assert os.access(seaweedfs.find_binary(), os.X_OK)


def test_home_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPBEAM_HOME", "/x/y")
    assert home() == Path("/x/y")
    monkeypatch.delenv("WARPBEAM_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert home() == Path("/h/.warpbeam")


def test_a_servers_secret_is_not_printed_and_not_handed_on(tmp_path: Path) -> None:
    server = EmbeddedServer("http://127.0.0.1:1", "id", "canary", "warpbeam", tmp_path, 1)
    assert "canary" not in repr(server)
    config = server.storage_config("teams")
    assert config == StorageConfig("s3://warpbeam/teams", "embedded", "http://127.0.0.1:1")
    assert "canary" not in json.dumps(config.to_dict())


def test_another_homes_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPBEAM_HOME", str(tmp_path))
    with pytest.raises(PlatformError, match="WARPBEAM_HOME") as caught:
        server_for(StorageConfig("s3://warpbeam", "embedded", "http://127.0.0.1:1"))
    assert caught.value.reason == "other_home"


def test_stopping_what_never_ran(tmp_path: Path) -> None:
    assert stop_server(tmp_path) is False


def test_a_process_is_itself_only(tmp_path: Path) -> None:
    me = identify(os.getpid())
    assert me is not None
    assert is_running(me)
    assert not is_running(replace(me, started=me.started + 1))
    assert not is_running(replace(me, boot_id="another boot"))


def test_an_ended_process_does_not_run() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = identify(child.pid)
    assert identity is not None
    assert is_running(identity)
    child.communicate(b"\n")
    assert not is_running(identity)
    assert identify(child.pid) is None
