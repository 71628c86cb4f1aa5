"""Send a job to a running Ray cluster over its Jobs API, with nothing but HTTP: a laptop needs no Ray installed.

Following survives a dashboard that is away; the end is reported only when the cluster says it (DESIGN §5.9).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from warpbeam.errors import InfraError, PlatformError, UnknownFate, UserError
from warpbeam.launch.bundle import Bundle

POLL_S = 2.0
GIVE_UP_S = 600.0
BYTES_PER_POLL_S = 2_000_000  # the API sends the whole log each time: a long one is asked for less often
AGENT_S = 60.0  # a dashboard answers some seconds before the agents that start jobs are there
_PASSING = ("No available agent", "ServerDisconnectedError", "ClientConnectorError", "ClientConnectionResetError")
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)


@dataclass(frozen=True)
class JobState:
    """What the cluster says about a job."""

    status: str
    message: str
    exit_code: int | None

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")


class RayJobs:
    """The Jobs API of one cluster."""

    def __init__(
        self,
        address: str,
        transport: httpx.BaseTransport | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if not address.startswith(("http://", "https://")):
            raise UserError(
                f"--address {address!r} is not a dashboard's address",
                fix="write --address http://HOST:8265",
                reason="bad_address",
            )
        self._sleep, self._now = sleep, now
        self.address = address.rstrip("/")
        self._client = httpx.Client(base_url=self.address, headers=_auth(), timeout=_TIMEOUT, transport=transport)

    def ray_version(self) -> str:
        """The cluster's Ray version; also the check that there is one."""
        answer = self._request("GET", "/api/version")
        if answer.status_code != 200:
            raise PlatformError(
                f"{self.address} answers, but not as a Ray dashboard (HTTP {answer.status_code})",
                fix="--address is the dashboard's address: http://HOST:8265",
                reason="not_a_dashboard",
            )
        return str(answer.json()["ray_version"])

    def upload(self, bundle: Bundle) -> str:
        """Send the bundle unless the cluster has this content already; returns its URI."""
        path = f"/api/packages/gcs/{bundle.name}"
        if self._request("GET", path).status_code != 200:
            answer = self._request("PUT", path, content=bundle.path.read_bytes(), timeout=300.0)
            _check(answer, "the bundle was not accepted")
        return f"gcs://{bundle.name}"

    def submit(self, entrypoint: str, working_dir: str | None, submission_id: str, metadata: dict[str, str]) -> None:
        """Start the job. Metadata is stored and shown by Ray: nothing secret goes into it."""
        body = {
            "entrypoint": entrypoint,
            "submission_id": submission_id,
            "runtime_env": {} if working_dir is None else {"working_dir": working_dir},
            "metadata": metadata,
        }
        deadline = self._now() + AGENT_S
        while True:
            answer = self._request("POST", "/api/jobs/", json=body)
            if not _is_passing(answer) or self._now() > deadline:
                return _check(answer, "the job was not accepted")
            self._sleep(POLL_S)
            if self._request("GET", f"/api/jobs/{submission_id}").status_code == 200:
                return None  # it had been accepted; only the answer was lost

    def state(self, submission_id: str) -> JobState:
        """Where the job stands."""
        answer = self._request("GET", f"/api/jobs/{submission_id}")
        if answer.status_code == 404:
            raise UnknownFate(
                f"the cluster at {self.address} does not know job {submission_id} any more",
                why="its head was restarted: Ray forgets jobs then",
                fix="the run's own record knows more: `warpbeam list`, `warpbeam status RUN`",
                reason="job_forgotten",
            )
        _check(answer, "the job's state could not be read")
        value: dict[str, Any] = answer.json()
        return JobState(value["status"], value.get("message") or "", value.get("driver_exit_code"))

    def logs(self, submission_id: str) -> str:
        """Everything the driver has printed so far; empty before it runs."""
        answer = self._request("GET", f"/api/jobs/{submission_id}/logs")
        return str(answer.json().get("logs") or "") if answer.status_code == 200 else ""

    def stop(self, submission_id: str) -> None:
        """Ask the job to end."""
        _check(self._request("POST", f"/api/jobs/{submission_id}/stop"), "the job could not be stopped")

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **options)
        except httpx.TransportError as error:
            raise InfraError(
                f"the Ray dashboard at {self.address} cannot be reached",
                why=str(error) or type(error).__name__,
                fix="check the address and the network; in Kubernetes: kubectl port-forward to port 8265 of the head",
                reason="dashboard_unreachable",
            ) from error
        if answer.status_code in (401, 403):
            raise PlatformError(
                f"the Ray dashboard at {self.address} refuses us (HTTP {answer.status_code})",
                fix="export RAY_AUTH_TOKEN=..., or put it into ~/.ray/auth_token",
                reason="dashboard_auth",
            )
        return answer


def follow(
    jobs: RayJobs,
    submission_id: str,
    *,
    on_trouble: Callable[[str], None] = lambda text: None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[str | JobState]:
    """New log text as it comes, and last the job's final state. No text is lost or repeated when the network breaks.

    Raises:
        UnknownFate: the cluster was away for `GIVE_UP_S`, or has forgotten the job.
    """
    shown = 0
    away_since: float | None = None
    while True:
        try:
            state = jobs.state(submission_id)  # asked first: what was printed before the end is read after it
            text = jobs.logs(submission_id)
        except InfraError as error:
            if away_since is None:
                away_since = now()
                on_trouble(f"{error.what}; trying again")
            if now() - away_since > GIVE_UP_S:
                raise UnknownFate(
                    f"job {submission_id}: the cluster was away for {GIVE_UP_S / 60:.0f} minutes",
                    why=str(error),
                    fix="the job may go on: `warpbeam status RUN` reads its record",
                    reason="cluster_unreachable",
                ) from error
            sleep(POLL_S)
            continue
        away_since = None
        if len(text) > shown:
            yield text[shown:]
            shown = len(text)
        if state.ended:
            yield state
            return
        sleep(max(POLL_S, len(text) / BYTES_PER_POLL_S))


def _is_passing(answer: httpx.Response) -> bool:
    """Whether the dashboard is there but the agent behind it is not yet."""
    return answer.status_code == 500 and any(word in answer.text for word in _PASSING)


def _check(answer: httpx.Response, what: str) -> None:
    if answer.status_code == 200:
        return
    last = answer.text.strip().splitlines()[-1:] or [""]
    raise PlatformError(
        f"{what} (HTTP {answer.status_code})",
        why=last[0][:500],
        fix="see whether the cluster is well (`ray status` there), then run the command again",
        reason="dashboard_refused",
    )


def _auth() -> dict[str, str]:
    """Ray's own token places, in its own order."""
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if not token and path.is_file():
        token = path.read_text().strip()
    return {"Authorization": f"Bearer {token}"} if token else {}
