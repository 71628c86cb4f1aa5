"""The embedded server's life: started once, found again, restarted on its data, closed to everybody else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from warpbeam.storage import open_store, seaweedfs
from warpbeam.storage.embedded import ensure_server, home, stop_server


@pytest.fixture
def own_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home, and so a server, of this test's own: it gets killed."""
    folder = Path(tempfile.mkdtemp(prefix="wb-", dir="/tmp"))
    monkeypatch.setenv("WARPBEAM_HOME", str(folder))
    yield folder
    stop_server(folder)
    shutil.rmtree(folder)


def test_the_session_server_is_attached_to(warpbeam_home: Path, s3: object) -> None:
    first, second = ensure_server(warpbeam_home), ensure_server(warpbeam_home)
    assert first == second
    assert home() == warpbeam_home


def test_the_server_is_closed_to_others(warpbeam_home: Path, s3: object) -> None:
    server = ensure_server(warpbeam_home)
    folder = warpbeam_home / "s3"
    for name in ("state.json", "s3.json", "server.log"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    process = psutil.Process(server.pid)
    assert os.sched_getscheduler(server.pid) == os.SCHED_BATCH, "it does not interrupt ranks"
    assert server.secret_key not in " ".join(process.cmdline())
    assert server.secret_key not in process.environ().values()
    assert not [name for name in process.environ() if name.startswith("AWS_")]
    listening = [c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert set(listening) == {"127.0.0.1"}


def test_killed_it_starts_again_with_its_data_and_clients_go_on(own_home: Path) -> None:
    server = ensure_server(own_home)
    store = open_store(server.storage_config("x"))
    data = {f"k/{n}": os.urandom(10_000 + n) for n in range(20)}
    for key, value in data.items():
        assert store.put_if_absent(key, value)
    os.kill(server.pid, signal.SIGKILL)

    # a store that was open all along notices nothing but a pause
    assert store.get("k/7") == data["k/7"]
    again = ensure_server(own_home)
    assert again.pid != server.pid
    assert (again.endpoint_url, again.secret_key) == (server.endpoint_url, server.secret_key)
    assert {info.key: store.get(info.key) for info in store.list("k/")} == data
    assert store.put_if_absent("k/7", b"") is False

    # and a second time, now without its state file and with its process alive: nobody may share the data folder
    (own_home / "s3" / "state.json").unlink()
    third = ensure_server(own_home)
    assert not psutil.pid_exists(again.pid) or psutil.Process(again.pid).status() == psutil.STATUS_ZOMBIE
    fresh = open_store(third.storage_config("x"))
    assert {info.key: fresh.get(info.key) for info in fresh.list("k/")} == data

    assert stop_server(own_home) is True
    assert stop_server(own_home) is False
    assert not psutil.pid_exists(third.pid) or psutil.Process(third.pid).status() == psutil.STATUS_ZOMBIE


_ENSURE = """
import sys
from pathlib import Path
from warpbeam.storage.embedded import ensure_server
server = ensure_server(Path(sys.argv[1]))
print(server.pid, server.endpoint_url)
"""


def test_commands_that_start_together_end_with_one_server_that_outlives_them(own_home: Path) -> None:
    command = [sys.executable, "-c", _ENSURE, str(own_home)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {child.communicate(timeout=60)[0] for child in children}
    assert len(answers) == 1, answers
    pid, endpoint = answers.pop().split()
    state = json.loads((own_home / "s3" / "state.json").read_text())
    assert (state["process"]["pid"], state["endpoint_url"]) == (int(pid), endpoint)
    running = [p for p in psutil.process_iter(["cmdline"]) if f"-dir={own_home}/s3/data" in (p.info["cmdline"] or [])]
    assert [process.pid for process in running] == [int(pid)]
    open_store(ensure_server(own_home).storage_config()).put("x", b"1")


def test_ports_are_ten_different_ones_that_the_server_can_use() -> None:
    for _ in range(20):
        ports = seaweedfs.pick_ports()
        assert len(set(ports.values())) == 10
        assert ports["admin.port.grpc"] == ports["admin.port"] + 10_000
        assert all(20_000 <= port < 32_768 for port in ports.values())
