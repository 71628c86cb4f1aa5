"""Every other kind of end, of runs that train: nothing is held soon afterwards, and nothing is tried again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.kube import sft_job
from tests.kube.lab.api import Api
from tests.kube.lab.laboratory import Laboratory
from tests.kube.overlay import opened
from tests.kube.progress import let_in, steps
from tests.kube.runs import RAY, Run, Tell, rendered, tenancy
from tests.kube.user import Command
from warpbeam.record.states import RunState
from warpbeam.record.view import RunView
from warpbeam.storage import StorageConfig, open_store

pytestmark = pytest.mark.long

FREE_WITHIN_S = 300
BROKEN = """\
class Pace:
    def on_step(self, ctx, row):
        if row["step"] == 5:
            raise ValueError("a mistake of the job's own")
"""


@pytest.mark.parametrize("end", ["failed", "stopped", "deleted"])
def test_nothing_is_held_after(
    lab: Laboratory, api: Api, s3: StorageConfig, tmp_path: Path, tell: Tell, end: str
) -> None:
    shop = sft_job.open_shop(lab, s3)
    name = f"ends-{end}"
    job, pool = sft_job.write_files(tmp_path, shop, name=name, steps=2000, pace_s=0.2, retries=1)
    if end == "failed":
        (job.parent / "pace.py").write_text(BROKEN)
    view = RunView(open_store(s3), sft_job.TEAM, name)
    with tenancy(api, opened(rendered(job, pool, "--kind", "tenancy"))) as namespace:
        sft_job.put_secret(api, shop)
        run = Run(api, namespace, name)
        with Command(lab, shop, job.parent, pool, ("submit", "job.yaml", "--kube")) as command:
            cluster = let_in(run, command, tell)
            if end != "failed":
                run.until("its first steps", lambda _: len(steps(view)) > 5, 240)
            began = time.monotonic()
            if end == "stopped":
                with Command(lab, shop, job.parent, pool, ("stop", name)) as stop:
                    assert stop.end(60) == 0, stop.said
            elif end == "deleted":
                api.delete(RAY, "RayJob", namespace, name)
            code = command.end(240)
            if end == "failed":
                began = time.monotonic()
        run.until("the end of its pods", lambda run: not held(run), FREE_WITHIN_S)
        tell(f"{end} (exit {code}) -> nothing is held any more {time.monotonic() - began:.0f} s")
        if end != "deleted":
            assert run.cluster_name() in ("", cluster), "one cluster"
    state, reason = view.state()
    if end == "failed":
        assert (code, state, reason) == (1, RunState.FAILED, "user_code_failed")
    elif end == "stopped":
        assert (code, state, reason) == (1, RunState.STOPPED, "asked")
    else:  # Ray's job is stopped beside its pods: whether the driver can still say so is a matter of seconds
        assert code == 4
        assert state in (RunState.STOPPED, RunState.INTERRUPTED), reason


def held(run: Run) -> list[str]:
    """Heads and workers that are there."""
    return [pod["metadata"]["name"] for pod in run.pods() if "ray.io/cluster" in pod["metadata"]["labels"]]
