"""What may break under a run that trains, one after the other: each time it goes on, and it ends Complete."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.kube import sft_job
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.lab.programs import program
from tests.kube.lab.sandbox import wait_for
from tests.kube.overlay import opened
from tests.kube.progress import committed, let_in, next_attempt, placed, steps
from tests.kube.runs import Run, Tell, rendered, tenancy
from tests.kube.user import Command
from warpbeam.record.states import RunState
from warpbeam.record.view import RunView
from warpbeam.storage import StorageConfig, open_store

pytestmark = pytest.mark.long

NAME = "faults"
STEPS = 200
PACE_S = 0.3


def kubectl(lab: Laboratory, *words: str) -> str:
    """As an administrator types it."""
    config = f"--kubeconfig={lab.place.kubeconfig('admin')}"
    return lab.sandbox.run(program("kubectl"), config, *words).stdout


def test_a_run_gets_over_everything_else(
    lab: Laboratory, api: Api, s3: StorageConfig, tmp_path: Path, tell: Tell
) -> None:
    shop = sft_job.open_shop(lab, s3)
    job, pool = sft_job.write_files(tmp_path, shop, name=NAME, steps=STEPS, pace_s=PACE_S, retries=1)
    view = RunView(open_store(s3), sft_job.TEAM, NAME)
    with tenancy(api, opened(rendered(job, pool, "--kind", "tenancy"))) as namespace:
        sft_job.put_secret(api, shop)
        run = Run(api, namespace, NAME)
        with Command(lab, shop, job.parent, pool, ("submit", "job.yaml", "--kube")) as command:
            let_in(run, command, tell)
            for fault in (restart_operator, restart_api_server, kill_a_worker, drain_a_node):
                run.until("a checkpoint of the newest attempt", lambda _: committed(view), 240)
                fault(lab, run, view, tell)
            assert command.end(300) == 0, command.said[-4000:]
        assert run.status() == "Complete", run.verdict()
    assert view.state() == (RunState.DONE, "")
    assert view.status().step == STEPS


def restart_operator(lab: Laboratory, run: Run, view: RunView, tell: Tell) -> None:
    """Nobody reconciles for a while; the run does not notice."""
    attempts = view.attempts()
    lab.kill("operator")
    time.sleep(5)
    lab.start("operator")
    goes_on(run, view, attempts, "operator away for 5 s", tell)


def restart_api_server(lab: Laboratory, run: Run, view: RunView, tell: Tell) -> None:
    """The same; whoever follows asks again."""
    attempts = view.attempts()
    lab.kill("apiserver")
    time.sleep(5)
    lab.start("apiserver")
    wait_for("the API server", run.api.ready)
    goes_on(run, view, attempts, "API server away for 5 s", tell)


def goes_on(run: Run, view: RunView, attempts: list[str], what: str, tell: Tell) -> None:
    """Its steps are taken, by the same attempt."""
    before, began = steps(view)[-1], time.monotonic()
    run.until("further steps", lambda _: steps(view)[-1] > before + 5, 60)
    assert view.attempts() == attempts
    tell(f"{what}: step {before} -> {steps(view)[-1]} in {time.monotonic() - began:.0f} s, the same attempt")


def kill_a_worker(lab: Laboratory, run: Run, view: RunView, tell: Tell) -> None:
    """Its pod is gone from one moment to the next; KubeRay makes another one in the same cluster."""
    known, cluster, began = view.attempts(), run.cluster_name(), time.monotonic()
    victim = run.pods_of("worker")[0]["metadata"]["name"]
    run.api.delete("v1", "Pod", run.namespace, victim, grace_s=0)
    run.until("a pod in its place", lambda run: victim not in names(run) and len(placed(run)) == 2, 120)
    placed_s = time.monotonic() - began
    before = committed(view)
    first = next_attempt(run, view, known)
    tell(f"worker killed: another pod {placed_s:.0f} s, step {first} {time.monotonic() - began:.0f} s")
    assert first > before
    assert run.cluster_name() == cluster


def drain_a_node(lab: Laboratory, run: Run, view: RunView, tell: Tell) -> None:
    """Its pods are evicted with their grace: the run saves first, and moves."""
    (head,) = run.pods_of("head")
    node = next(name for name in placed(run) if name != head["spec"]["nodeName"])
    known, began = view.attempts(), time.monotonic()
    kubectl(lab, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
    drained_s = time.monotonic() - began
    saved = view.log.newest_commit()
    first = next_attempt(run, view, known)
    tell(f"node drained: empty {drained_s:.0f} s, step {first} {time.monotonic() - began:.0f} s")
    kubectl(lab, "uncordon", node)
    assert saved is not None
    assert first == (saved.step or 0) + 1, "no step is taken twice"


def names(run: Run) -> list[str]:
    """Of the ranks' pods."""
    return [pod["metadata"]["name"] for pod in run.pods_of("worker")]
