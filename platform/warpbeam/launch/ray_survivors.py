"""Ray Train ends all ranks of a group once one has failed; this holds it back while a survivor saves (ADR 0018).

Runs in Ray Train's controller. A rank that failed by itself has saved before Ray hears of it. Where one has died, the
others come to know at their next collective, so they are given the time of two steps to begin.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.callback import WorkerGroupCallback

from warpbeam.train.survival import Prospect, Stage, prospect

log = logging.getLogger(__name__)

SAVE_S = 180.0
ASK_S = 2.0
PAUSE_S = 0.1


class LetSurvivorsSave(WorkerGroupCallback):  # type: ignore[misc]
    """Waits before the ranks of a failed group are ended, as long as one of them saves or may begin to."""

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        status = worker_group.get_latest_poll_status()
        if status is None or not status.errors:
            return
        died = any(isinstance(error, WorkerHealthCheckFailedError) for error in status.errors.values())
        began_at = time.monotonic()
        while (left_s := patience_s(_ask(worker_group), died) - (time.monotonic() - began_at)) > 0:
            time.sleep(min(PAUSE_S, left_s))


def patience_s(prospects: Sequence[Prospect], died: bool) -> float:
    """How long after a failure the ranks may live on, by what those that can still be asked say.

    Args:
        died: a rank is gone without a word, which the others notice by themselves.
    """
    stages = {rank.stage for rank in prospects}
    if Stage.SAVED in stages:
        return 0.0
    if Stage.SAVING in stages:
        return SAVE_S
    return max((rank.notices_in_s for rank in prospects if died), default=0.0)


def _ask(worker_group: Any) -> list[Prospect]:
    """What the ranks that live say; one that does not answer in time counts as dead."""
    asked = [worker.execute_async(prospect) for worker in worker_group.get_workers()]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ASK_S)
    found = []
    for answer in answered:
        try:
            found.append(ray.get(answer))
        except RayError as error:
            log.debug("a rank that is gone: %s", error)
    return found
