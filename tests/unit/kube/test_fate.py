"""How a RayJob ends, as a table: KubeRay's words -> a run's state -> an exit code."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kube.test_why import container, pod, ray_job
from warpbeam.kube.fate import fate_of
from warpbeam.kube.why import STATES, Seen
from warpbeam.record.states import RunState

PROGRAM = "Job entrypoint command failed with exit code {}, last available logs (truncated to 20,000 chars):\nTraceback"
OOM = pod(containerStatuses=container({"terminated": {"reason": "OOMKilled"}}))


def test_every_word_of_kuberay_has_a_state() -> None:
    """JobDeploymentStatus in the source of KubeRay 1.6.2."""
    running = {"Initializing", "Running", "Suspending", "Suspended", "Retrying", "Waiting"}
    assert set(STATES) == {"", *running, "Complete", "Failed", "ValidationFailed"}


@pytest.mark.parametrize("word", [word for word, state in STATES.items() if not state.ended])
def test_what_goes_on_has_no_fate(word: str) -> None:
    assert fate_of(Seen(ray_job(word))) is None


@pytest.mark.parametrize(
    ("word", "status", "state", "code"),
    [
        ("Complete", {"jobStatus": "SUCCEEDED"}, RunState.DONE, 0),
        ("Complete", {"jobStatus": "STOPPED"}, RunState.STOPPED, 1),
        ("Failed", {"reason": "AppFailed", "message": PROGRAM.format(1)}, RunState.FAILED, 1),
        ("Failed", {"reason": "AppFailed", "message": PROGRAM.format(2)}, RunState.FAILED, 2),
        ("Failed", {"reason": "AppFailed", "message": PROGRAM.format(3)}, RunState.FAILED, 3),
        ("Failed", {"reason": "AppFailed", "message": PROGRAM.format(137)}, RunState.FAILED, 1),
        ("Failed", {"reason": "SubmissionFailed", "message": "x"}, RunState.FAILED, 3),
        ("Failed", {"reason": "PreRunningDeadlineExceeded", "message": "x"}, RunState.FAILED, 3),
        ("Failed", {"reason": "DeadlineExceeded", "message": "x"}, RunState.FAILED, 3),
        ("ValidationFailed", {"message": "x"}, RunState.FAILED, 3),
    ],
)
def test_each_end_has_its_exit_code(word: str, status: dict[str, Any], state: RunState, code: int) -> None:
    fate = fate_of(Seen(ray_job(word, **status)))
    assert fate is not None
    assert (fate.state, fate.exit_code) == (state, code)
    assert "Traceback" not in fate.sentence, "the log is printed elsewhere"


def test_memory_is_the_jobs_own_doing() -> None:
    fate = fate_of(Seen(ray_job("Failed", reason="SubmissionFailed", message="x"), pods=[OOM]))
    assert fate is not None
    assert (fate.reason, fate.exit_code) == ("out_of_memory", 1)
