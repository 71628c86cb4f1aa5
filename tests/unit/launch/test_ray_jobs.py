from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from warpbeam.errors import InfraError, PlatformError, UnknownFate, UserError
from warpbeam.launch import ray_jobs
from warpbeam.launch.bundle import Bundle
from warpbeam.launch.ray_jobs import JobState, RayJobs, follow


def cluster(handler: Callable[[httpx.Request], httpx.Response]) -> RayJobs:
    return RayJobs("http://head:8265/", transport=httpx.MockTransport(handler))


class Script:
    """A dashboard that answers (status, log) step by step; an exception in the list is a broken network."""

    def __init__(self, *steps: tuple[str, str] | Exception) -> None:
        self.steps = list(steps)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        step = self.steps[0]
        if isinstance(step, Exception):
            self.steps.pop(0)
            raise step
        if request.url.path.endswith("/logs"):
            self.steps.pop(0)
            return httpx.Response(200, json={"logs": step[1]})
        return httpx.Response(200, json={"status": step[0], "message": "", "driver_exit_code": 2})


def test_following_survives_a_broken_network_without_repeating_a_line() -> None:
    broken = httpx.ConnectError("refused")
    script = Script(("RUNNING", "one\n"), broken, broken, ("RUNNING", "one\ntwo\n"), ("FAILED", "one\ntwo\nlast"))
    troubles: list[str] = []
    pieces = list(follow(cluster(script), "j", on_trouble=troubles.append, sleep=lambda s: None, now=lambda: 0.0))
    assert pieces == ["one\n", "two\n", "last", JobState("FAILED", "", 2)]
    assert len(troubles) == 1


def test_a_cluster_that_stays_away_is_an_unknown_fate() -> None:
    clock = iter(range(0, 10_000, 100))
    script = Script(*[httpx.ConnectError("refused")] * 100)
    with pytest.raises(UnknownFate) as caught:
        list(follow(cluster(script), "j", sleep=lambda s: None, now=lambda: float(next(clock))))
    assert caught.value.exit_code == 4


def test_a_forgotten_job_is_an_unknown_fate() -> None:
    with pytest.raises(UnknownFate, match="does not know job"):
        cluster(lambda request: httpx.Response(404)).state("j")


@pytest.mark.parametrize("exists", [True, False])
def test_a_bundle_is_sent_once(tmp_path: Path, exists: bool) -> None:
    sent: list[bytes] = []

    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.path == f"/api/packages/gcs/_ray_pkg_{'ab' * 16}.zip"
        if request.method == "PUT":
            sent.append(request.read())
        return httpx.Response(200 if exists or request.method == "PUT" else 404)

    (tmp_path / "b.zip").write_bytes(b"zip")
    bundle = Bundle(tmp_path / "b.zip", "ab" * 32, 3)
    assert cluster(handle).upload(bundle) == f"gcs://_ray_pkg_{'ab' * 16}.zip"
    assert sent == ([] if exists else [b"zip"])


def test_nothing_secret_is_in_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary")
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"submission_id": "j"})

    cluster(handle).submit("warpbeam run job.yaml", "gcs://x.zip", "j", {"warpbeam_run": "r"})
    body = json.loads(seen[0].read())
    assert body["runtime_env"] == {"working_dir": "gcs://x.zip"}
    assert "canary" not in str(body)


def test_a_head_whose_agents_are_not_there_yet_is_asked_again() -> None:
    early = httpx.Response(500, text="No available agent to submit job")
    answers = [early, httpx.Response(404), httpx.Response(200, json={})]
    pauses: list[float] = []
    transport = httpx.MockTransport(lambda request: answers.pop(0))
    RayJobs("http://head:8265", transport=transport, sleep=pauses.append).submit("x", "gcs://x.zip", "j", {})
    assert (len(pauses), answers) == (1, [])
    answers = [httpx.Response(500, text="ServerDisconnectedError"), httpx.Response(200, json={})]
    RayJobs("http://head:8265", transport=transport, sleep=pauses.append).submit("x", "gcs://x.zip", "j", {})
    assert (len(pauses), answers) == (2, [])
    with pytest.raises(PlatformError, match="not accepted"):
        cluster(lambda request: httpx.Response(500, text="broken")).submit("x", "gcs://x.zip", "j", {})


def test_clear_words_for_a_wrong_address() -> None:
    with pytest.raises(UserError, match="not a dashboard's address"):
        RayJobs("head:8265")
    with pytest.raises(PlatformError, match="not as a Ray dashboard"):
        cluster(lambda request: httpx.Response(404)).ray_version()
    with pytest.raises(PlatformError, match="refuses us"):
        cluster(lambda request: httpx.Response(401)).ray_version()

    def unreachable(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(InfraError, match="cannot be reached"):
        cluster(unreachable).ray_version()


def test_a_token_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t0ken")
    assert ray_jobs._auth() == {"Authorization": "Bearer t0ken"}
