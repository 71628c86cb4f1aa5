"""What is said of a run of which the log does not know everything."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kube.test_why import ray_job
from tests.unit.record.memory_store import MemoryStore
from warpbeam.checkpoint.members import Member
from warpbeam.errors import InfraError
from warpbeam.kube.why import Seen
from warpbeam.launch.standing import Standing, exit_code, standing
from warpbeam.record.desired import stop_is_wanted, write_desired
from warpbeam.record.states import RunState
from warpbeam.record.submission import Submission, read_end, write_submission
from warpbeam.record.view import RunView, list_runs
from warpbeam.storage.layout import log_key, submitted_prefix

WAITS = Seen(ray_job("Suspended", suspend=True))
AGAIN = Seen(ray_job("Retrying"))
DEADLINE = Seen(ray_job("Failed", reason="PreRunningDeadlineExceeded", message="late"))
HEAD_LOST = Seen(ray_job("Failed", reason="SubmissionFailed", message="x"))
ELSEWHERE = Member(role="driver", pid=1, start=1.0, boot_id="other", host="elsewhere")


class Run:
    """A store with one run; whether its submission or its claim is younger is set by hand."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.view = RunView(self.store, "red", "tiny")  # type: ignore[arg-type]

    def submit(self, age_s: float = 100.0) -> None:
        sent = Submission("red", "tiny", "ann", 1.0, "team-red", "tiny", "u", "lab", "https://api", "gpus", "", "", "")
        name = write_submission(self.store, sent)  # type: ignore[arg-type]
        self.store.ages[f"{submitted_prefix('red', 'tiny')}/{name}.json"] = age_s

    def claim(self, age_s: float, state: str | None = None, reason: str = "", **more: Any) -> None:
        claim = self.view.log.claim("0001-aa", [ELSEWHERE])
        self.store.ages[log_key("red", "tiny", claim.seq)] = age_s
        if state is not None:
            entry = claim.state(state, reason, **more)
            self.store.ages[log_key("red", "tiny", entry.seq)] = age_s

    def stands(self, *answers: Seen | Exception | None) -> Standing:
        left = list(answers)

        def ask(submission: Submission) -> Seen | None:
            assert submission.uid == "u"
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        found = standing(self.view, ask)
        assert left == [], "every question was asked"
        return found


def test_a_run_of_no_cluster_is_what_its_log_says() -> None:
    run = Run()
    run.claim(5.0)
    assert run.stands().state is RunState.STARTING


def test_a_run_that_no_driver_has_begun_is_what_its_cluster_says() -> None:
    run = Run()
    run.submit()
    found = run.stands(WAITS)
    assert (found.state, found.sentence, found.begun) == (RunState.WAITING, "it waits until all of it fits", False)
    away = run.stands(InfraError("nobody there"))
    assert (away.state, away.reason) == (RunState.WAITING, "submitted")
    assert "cannot be asked from here: nobody there" in away.sentence
    assert run.stands(None).reason == "rayjob_gone"


def test_an_end_without_a_driver_is_kept_and_outlives_the_cluster() -> None:
    run = Run()
    run.submit()
    assert exit_code(run.view, run.stands(DEADLINE)) == 3
    found = run.stands()
    assert (found.state, found.reason, exit_code(run.view, found)) == (RunState.FAILED, "deadline", 3)
    assert found.submission is not None
    assert read_end(run.store, found.submission) is not None  # type: ignore[arg-type]


def test_what_was_sent_again_waits_although_the_log_has_an_end() -> None:
    run = Run()
    run.claim(500.0, "stopped", "asked")
    run.submit(100.0)
    assert run.stands(WAITS).state is RunState.WAITING
    run.claim(50.0, "failed", "user_code_failed", owner="ml")
    found = run.stands()
    assert (found.state, found.reason, exit_code(run.view, found)) == (RunState.FAILED, "user_code_failed", 1)


def test_a_run_whose_machines_failed_goes_on_where_it_was_left_its_retries() -> None:
    run = Run()
    run.submit(100.0)
    run.claim(50.0, "failed", "too_many_failures", owner="infra")
    assert run.stands(AGAIN).state is RunState.STARTING
    ended = run.stands(HEAD_LOST)
    assert (ended.state, ended.reason) == (RunState.FAILED, "too_many_failures"), "the driver's word is nearer to it"


def test_listings_see_a_run_that_was_sent_and_one_that_ended_so() -> None:
    run = Run()
    run.submit()
    assert [line.state for line in list_runs(run.store)] == ["waiting"]  # type: ignore[arg-type]
    run.stands(DEADLINE)
    assert [line.state for line in list_runs(run.store)] == ["failed"]  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["interrupted", "asked"])
def test_between_two_clusters_the_run_goes_on(reason: str) -> None:
    run = Run()
    run.submit(100.0)
    run.claim(50.0, "stopped", reason)
    found = run.stands(*([AGAIN] if reason == "interrupted" else []))
    assert found.state is (RunState.STARTING if reason == "interrupted" else RunState.STOPPED)


def test_a_dead_driver_is_looked_for_in_its_cluster() -> None:
    run = Run()
    run.submit(1000.0)
    run.claim(500.0)
    assert run.stands(AGAIN).state is RunState.STARTING
    assert run.stands(None).state is RunState.INTERRUPTED
    assert run.stands(InfraError("away")).state is RunState.INTERRUPTED
    dead = run.stands(HEAD_LOST)
    assert (dead.state, dead.reason, exit_code(run.view, dead)) == (RunState.FAILED, "head_lost", 3)


def test_a_wish_to_stop_counts_for_the_submission_it_was_made_for() -> None:
    run = Run()
    assert not stop_is_wanted(run.view, since=None)
    write_desired(run.store, "red", "tiny", "stopped", by="ann")  # type: ignore[arg-type]
    assert stop_is_wanted(run.view, since=None)
    assert stop_is_wanted(run.view, since=0.0)
    assert not stop_is_wanted(run.view, since=1e12), "made after the wish: meant to run"
    write_desired(run.store, "red", "tiny", "running", by="ann")  # type: ignore[arg-type]
    assert not stop_is_wanted(run.view, since=0.0)
