"""Where a run stands when its record is not the whole story: sent to a cluster and not begun, or between two clusters.

The log says what drivers have written. What was sent after the last of them, and what a cluster is about to try again,
is not in it; the submission says in which cluster to ask. A cluster that cannot be asked changes nothing but words.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from warpbeam.checkpoint.log import newest_claim
from warpbeam.errors import Owner, WarpbeamError
from warpbeam.kube.fate import exit_code_of, fate_of
from warpbeam.kube.why import Seen, verdict
from warpbeam.launch import kube_look
from warpbeam.launch.own_ray_job import over_for_good
from warpbeam.record.states import RunState
from warpbeam.record.submission import Submission, SubmissionEnd, newest_submission, read_end, write_end
from warpbeam.record.view import RunView
from warpbeam.storage.layout import log_key

Ask = Callable[[Submission], Seen | None]
"""What a cluster has of a submission; None where its RayJob is not there any more."""
ASK_S: Final = 5.0
"""Between two questions to a cluster."""
GONE: Final = "the RayJob is not there any more, and no driver has said how it ended"


@dataclass(frozen=True)
class Standing:
    """State, reason code and one sentence, empty where nothing is to be explained.

    Args:
        submission: the newest, where the run was sent to a cluster.
        begun: a driver has claimed the run since then.
        exit_code: where something other than the log has said how it ended.
    """

    state: RunState
    reason: str = ""
    sentence: str = ""
    owner: Owner = "unknown"
    submission: Submission | None = None
    begun: bool = True
    exit_code: int | None = None


def standing(view: RunView, ask: Ask) -> Standing:
    """The run's state, with the cluster's word where the log has none."""
    state, reason = view.state()
    found = newest_submission(view)
    if found is None:
        return Standing(state, reason)
    submission, age_s = found
    begun = _claimed_within(view, age_s)
    if begun and not _may_go_on(view, state, reason):
        return Standing(state, reason, submission=submission)
    if not begun and (end := read_end(view.store, submission)) is not None:
        return Standing(end.state, end.reason, end.sentence, end.owner, submission, begun, end.exit_code)
    try:
        seen = ask(submission)
    except WarpbeamError as error:
        here = state if begun else RunState.WAITING
        return Standing(here, reason if begun else "submitted", _not_asked(error), "unknown", submission, begun)
    if seen is None:
        return Standing(state if begun else RunState.INTERRUPTED, "rayjob_gone", GONE, "unknown", submission, begun)
    said, fate = verdict(seen), fate_of(seen)
    if fate is None:
        return Standing(said.state, said.reason, said.sentence, said.owner, submission, begun)
    if begun and not (state is RunState.INTERRUPTED and fate.state is RunState.FAILED):
        return Standing(state, reason, submission=submission)  # the log is nearer to it
    end = SubmissionEnd(fate.state, fate.reason, fate.sentence, fate.owner, fate.exit_code)
    if not begun:
        with suppress(WarpbeamError):  # whoever may only read sees it all the same
            write_end(view.store, submission, end)
    return Standing(end.state, end.reason, end.sentence, end.owner, submission, begun, end.exit_code)


class Follower:
    """Asks again and again, the cluster less often than the record.

    Args:
        context: of the kubeconfig, where it is not the submitter's.
        on_sentence: hears why it does not run, once each time that this changes.
    """

    def __init__(
        self,
        view: RunView,
        context: str | None,
        on_sentence: Callable[[str], None],
        ask: Callable[[Submission, str | None], Seen | None] = kube_look.ask,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._context = context
        self._on_sentence = on_sentence
        self._ask = ask
        self._now = now
        self._asked_at = float("-inf")
        self._seen: Seen | None = None
        self.found = Standing(RunState.WAITING)

    def state(self) -> tuple[RunState, str]:
        """The newest state and its reason."""
        before = self.found.sentence
        self.found = standing(self._view, self._ask_seldom)
        if self.found.sentence and self.found.sentence != before:
            self._on_sentence(self.found.sentence)
        return self.found.state, self.found.reason

    def _ask_seldom(self, submission: Submission) -> Seen | None:
        if self._now() - self._asked_at >= ASK_S:
            self._seen = self._ask(submission, self._context)
            self._asked_at = self._now()
        return self._seen


def exit_code(view: RunView, found: Standing) -> int:
    """Of a command that waited for the end."""
    if found.exit_code is not None:
        return found.exit_code
    if found.state is RunState.FAILED:
        return view.failure_code()
    return exit_code_of(found.state, found.owner)


def _claimed_within(view: RunView, age_s: float) -> bool:
    """Whether the newest claim is younger than the submission, both by the store's clock."""
    claim = newest_claim(view.log.read())
    if claim is None:
        return False
    info = view.store.head(log_key(view.team, view.run, claim.seq))
    return info is not None and info.age_s <= age_s


def _may_go_on(view: RunView, state: RunState, reason: str) -> bool:
    """Ends after which a cluster may begin another attempt by itself: the driver has left it its retries."""
    if state not in (RunState.STOPPED, RunState.FAILED):
        return state is RunState.INTERRUPTED
    said = [entry for entry in view.log.read() if entry.kind == "state"][-1]
    return not over_for_good(state, reason, said.extra.get("owner", "unknown"))


def _not_asked(error: WarpbeamError) -> str:
    return f"its cluster cannot be asked from here: {error.what}"
