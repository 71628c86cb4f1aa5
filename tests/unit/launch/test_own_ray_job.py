"""Retries of a RayJob: lent while the driver lives, taken away when the run is over; whatever fails harms nothing."""

from __future__ import annotations

from typing import Any

import pytest

from warpbeam.errors import PlatformError
from warpbeam.kube import names
from warpbeam.launch.own_ray_job import OwnRayJob, over_for_good, own_ray_job
from warpbeam.record.states import RunState


class Rights:
    namespace = "team-red"

    def __init__(self, retries: str | None = "2", *, failing: bool = False) -> None:
        annotations = {names.RETRIES: retries} if retries is not None else {}
        self.job: dict[str, Any] = {
            "metadata": {"annotations": annotations, "creationTimestamp": "1970-01-01T00:01:40Z"},
            "spec": {"backoffLimit": 0},
        }
        self.failing = failing

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        assert (kind, name, namespace) == ("RayJob", "tiny", "team-red")
        if self.failing:
            raise PlatformError("no right")
        return self.job

    def patch(self, kind: str, name: str, namespace: str, change: dict[str, Any]) -> dict[str, Any]:
        if self.failing:
            raise PlatformError("no right")
        self.job["spec"] |= change["spec"]
        return self.job


def test_retries_are_lent_and_taken_away() -> None:
    rights = Rights()
    own = OwnRayJob("tiny", lambda: rights, pytest.fail)
    own.lend_retries()
    assert rights.job["spec"] == {"backoffLimit": 2}
    own.take_retries()
    assert rights.job["spec"] == {"backoffLimit": 0}
    assert own.made_at() == 100.0


@pytest.mark.parametrize("retries", [None, "0"])
def test_a_run_without_retries_is_left_alone(retries: str | None) -> None:
    rights = Rights(retries)
    OwnRayJob("tiny", lambda: rights, pytest.fail).lend_retries()
    assert rights.job["spec"] == {"backoffLimit": 0}


def test_a_missing_right_is_told_and_harms_nothing() -> None:
    told: list[str] = []
    own = OwnRayJob("tiny", lambda: Rights(failing=True), told.append)
    own.lend_retries()
    own.take_retries()
    assert own.made_at() is None
    assert len(told) == 3
    assert "will not be tried again" in told[0]


def test_an_image_without_the_client_is_told() -> None:
    def missing() -> Rights:
        raise ImportError("No module named 'kubernetes'")

    told: list[str] = []
    OwnRayJob("tiny", missing, told.append).lend_retries()
    assert "kubernetes" in told[0]


@pytest.mark.parametrize(
    ("state", "reason", "owner", "over"),
    [
        (RunState.FAILED, "user_code_failed", "ml", True),
        (RunState.FAILED, "bad_input", "ml", True),
        (RunState.FAILED, "same_failure_twice", "ml", True),
        (RunState.FAILED, "no_resources", "platform", True),
        (RunState.FAILED, "fenced", "infra", True),
        (RunState.FAILED, "crash", "unknown", True),
        (RunState.FAILED, "too_many_failures", "infra", False),
        (RunState.STOPPED, "asked", "unknown", True),
        (RunState.STOPPED, "interrupted", "unknown", False),
        (RunState.DONE, "", "unknown", False),
    ],
)
def test_what_is_over_for_good(state: RunState, reason: str, owner: Any, over: bool) -> None:
    assert over_for_good(state, reason, owner) is over


def test_only_a_head_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(names.RAY_JOB_ENV, raising=False)
    assert own_ray_job(pytest.fail) is None
    monkeypatch.setenv(names.RAY_JOB_ENV, "tiny")
    found = own_ray_job(pytest.fail)
    assert found is not None
    assert found.name == "tiny"
