"""Names, tokens, routes and the state file of a machine's Serve, without starting one."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from warpbeam.errors import UserError
from warpbeam.serve import deploy
from warpbeam.serve.local_state import LocalServe, Served, read_state, running_state, write_state
from warpbeam.storage.processes import ProcessIdentity

ROOT = Served(route="/", model="/m", token_file=None)


def server(**deployments: Served) -> LocalServe:
    nobody = ProcessIdentity(pid=2**22 + 1, started=1, boot_id="none", host="none")
    return LocalServe(process=nobody, host="127.0.0.1", port=8000, short_dir="/tmp/none", deployments=deployments)


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "v1", "health", "a b", "x" * 64, "naïve"])
def test_bad_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be a deployment's name"):
        deploy.deploy("/nowhere", name=name, home=tmp_path)


@pytest.mark.parametrize("token", ["", "short", "with space in it", "ümlaut-token", "line\nbreak-token"])
def test_bad_tokens_are_refused_and_not_repeated(token: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        deploy.deploy("/nowhere", name="m", token=token, home=tmp_path)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_loopback(host: str, expected: bool) -> None:
    assert deploy._is_loopback(host) is expected


def test_a_name_is_no_address() -> None:
    with pytest.raises(UserError, match="not an address"):
        deploy._is_loopback("example.com")


def test_beyond_loopback_a_token_is_made_and_kept(tmp_path: Path) -> None:
    made = deploy._keep_token(tmp_path, "m", None, needed=True)
    assert made is not None
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    token = made.read_text()
    assert len(token) > 30
    assert deploy._keep_token(tmp_path, "m", None, needed=False) == made, "kept at the next deployment"
    assert made.read_text() == token
    deploy._keep_token(tmp_path, "m", "another-token", needed=False)
    assert made.read_text() == "another-token"


def test_on_loopback_no_token_is_needed(tmp_path: Path) -> None:
    assert deploy._keep_token(tmp_path, "m", None, needed=False) is None


def test_routes() -> None:
    assert deploy._route(server(), "m") == "/"
    assert deploy._route(server(m=ROOT), "m") == "/", "a new version takes the old one's place"
    assert deploy._route(server(m=ROOT), "other") == "/other"
    assert deploy._route(server(other=Served("/other", "/m", None)), "m") == "/"


def test_urls() -> None:
    state = server(m=ROOT, other=Served("/other", "/m", None))
    assert (state.url("m"), state.url("other")) == ("http://127.0.0.1:8000", "http://127.0.0.1:8000/other")
    anywhere = LocalServe(state.process, "0.0.0.0", 80, "/tmp/none", state.deployments)
    assert anywhere.url("m") == "http://127.0.0.1:80"
    assert LocalServe(state.process, "::1", 80, "/tmp/none", state.deployments).url("m") == "http://[::1]:80"


def test_the_state_file(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    (tmp_path / "serve").mkdir()
    write_state(tmp_path, server(m=ROOT))
    assert stat.S_IMODE((tmp_path / "serve" / "state.json").stat().st_mode) == 0o600
    assert read_state(tmp_path) == server(m=ROOT)
    assert running_state(tmp_path) is None, "that process does not run"
    assert deploy.deployments(tmp_path) == []
    (tmp_path / "serve" / "state.json").write_text("{")
    assert read_state(tmp_path) is None


def test_nothing_served(tmp_path: Path) -> None:
    assert not deploy.undeploy("m", tmp_path)
    assert not deploy.stop_serving(tmp_path)
    with pytest.raises(UserError, match="nothing called 'm'") as caught:
        deploy.find_deployment("m", tmp_path)
    assert "warpbeam deploy m" in caught.value.fix


def test_a_running_loopback_server_is_not_opened_to_the_world() -> None:
    notes: list[str] = []
    with pytest.raises(UserError, match="cannot listen"):
        deploy._check_address(server(m=ROOT), "0.0.0.0", 8000, notes)
    deploy._check_address(server(m=ROOT), "127.0.0.1", 9000, notes)
    assert "port 8000" in notes[0]


def test_deploying_imports_neither_ray_nor_torch() -> None:
    code = (
        "import sys, warpbeam.serve.deploy, warpbeam.serve.client, warpbeam.serve.terminal_chat;"
        "sys.exit(any(name in sys.modules for name in ('ray', 'torch', 'transformers', 'starlette')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
