"""The SFT job in pods, from `warpbeam submit --kube` to Complete with checkpoints in S3, over a deleted head and a lost
node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kube import sft_job
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.overlay import opened
from tests.kube.progress import let_in, placed, timed
from tests.kube.runs import Object, Run, Tell, rendered, tenancy
from tests.kube.user import Command
from warpbeam.checkpoint.verify import verify
from warpbeam.record.states import RunState
from warpbeam.record.stop import members
from warpbeam.record.view import RunView
from warpbeam.storage import StorageConfig, open_store

STEPS = 60
PACE_S = 0.5
NAME = "sft-pods"


def test_a_run_gets_over_a_deleted_head_and_a_lost_node(
    lab: Laboratory, api: Api, s3: StorageConfig, tmp_path: Path, tell: Tell
) -> None:
    shop = sft_job.open_shop(lab, s3)
    job, pool = sft_job.write_files(tmp_path, shop, name=NAME, steps=STEPS, pace_s=PACE_S, retries=2)
    view = RunView(open_store(s3), sft_job.TEAM, NAME)
    with tenancy(api, opened(rendered(job, pool, "--kind", "tenancy"))) as namespace:
        sft_job.put_secret(api, shop)
        run = Run(api, namespace, NAME)
        with Command(lab, shop, job.parent, pool, ("submit", "job.yaml", "--kube")) as command:
            clusters = [let_in(run, command, tell)]
            assert len(set(placed(run))) == 2, "each pod of ranks on a node of its own"
            with timed("head deleted", run, view, tell):
                (head,) = run.pods_of("head")
                api.delete("v1", "Pod", namespace, head["metadata"]["name"])
            clusters.append(run.cluster_name())
            with lost_node(lab, run) as lose:
                with timed("node lost", run, view, tell):
                    lose()
                clusters.append(run.cluster_name())
            assert command.end(240) == 0, command.said[-4000:]
        assert run.status() == "Complete", run.verdict()
        ended = time.monotonic()
        run.until("the end of its pods", lambda run: not [p for p in run.pods() if is_held(p)], 90)
        tell(f"Complete -> nothing is held any more {time.monotonic() - ended:.0f} s")
    assert len(set(clusters)) == 3, clusters
    check_record(view)


@contextmanager
def lost_node(lab: Laboratory, run: Run) -> Iterator[Callable[[], None]]:
    """By which a node with ranks and without the head vanishes; it is there again at the end."""
    lost: list[int] = []

    def lose() -> None:
        (head,) = run.pods_of("head")
        node = next(name for name in placed(run) if name != head["spec"]["nodeName"])
        lost.append(int(node.removeprefix("node")))
        lab.lose_node(lost[0])

    try:
        yield lose
    finally:
        for number in lost:
            lab.find_node(number)


def is_held(pod: Object) -> bool:
    """Head or worker; the submitter's pod stays to be read, and what lies on a lost node holds nothing."""
    return "ray.io/cluster" in pod["metadata"]["labels"]


def check_record(view: RunView) -> None:
    """What the store says of it, now that the namespace is gone."""
    assert view.state() == (RunState.DONE, "")
    status = view.status()
    assert (status.step, status.committed_step) == (STEPS, STEPS)
    hosts = {member.host for member in members(view, view.attempts()[-1]) if member.role != "driver"}
    assert len(hosts) == 2, "each rank in a pod of its own"
    found = verify(view.store, sft_job.TEAM, NAME, STEPS)
    assert found.ok, found.faults
