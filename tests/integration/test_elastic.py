"""An elastic run on a real Ray cluster: a node is lost, the run goes on with what is left; one comes, it grows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launch_runs import Workplace, put_data
from tests.integration.ray_head import ray_head
from warpbeam.record.states import RunState
from warpbeam.record.view import LOSS, RunView
from warpbeam.storage import StorageConfig

POOL = """\
schema: warpbeam/pool/v1
name: two-nodes
accelerator: {kind: cpu, memory_gib: 4}
nodes: 2
accelerators_per_node: 1
cpus_per_worker: 1
storage: {kind: embedded, uri: "s3://warpbeam"}
"""


@pytest.fixture
def place(s3: StorageConfig, tmp_path: Path) -> Iterator[Workplace]:
    put_data(s3)
    workplace = Workplace(tmp_path, s3, "elastic")
    yield workplace
    workplace.close()


@pytest.mark.long
def test_a_run_goes_on_with_fewer_ranks_and_grows_again(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    job = place.write_job(max_steps=100_000)
    text = job.read_text().replace("{accelerators: 2}", "{accelerators: {min: 1, max: 2}}")
    job.write_text(text.replace("strategy: ddp", "strategy: zero3"))
    (place.folder / "pool.yaml").write_text(POOL)
    code, text = place.run("data", "prepare", "job.yaml", "--no-ray", "--pool", "pool.yaml")
    assert code == 0, text
    with ray_head({}, cpus=1) as head:
        head.add_node("second", cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", head.address)
        driver = place.start("run", "job.yaml", "--pool", "pool.yaml")
        place.until(driver, lambda: trains(place.view(), ranks=2))

        head.kill_node("second")
        place.until(driver, lambda: trains(place.view(), ranks=1))

        head.add_node("third", cpus=1)
        place.until(driver, lambda: len(place.view().attempts()) > 2 and trains(place.view(), ranks=2))

        driver.send_signal(signal.SIGINT)
        assert driver.wait(120) == 1, place.text()
    view = place.view()
    assert view.state() == (RunState.STOPPED, "interrupted")
    losses: dict[int, list[float]] = {}
    for row in view.all_metrics():
        losses.setdefault(int(row["step"]), []).append(float(row[LOSS]))
    assert sorted(losses) == list(range(1, max(losses) + 1)), "no step is left out"
    repeated = [found for found in losses.values() if len(found) > 1]
    assert repeated, "the steps since the checkpoint before the loss"
    for found in repeated:
        assert found == pytest.approx([found[0]] * len(found), rel=1e-4), "the same batch on other numbers of ranks"


@pytest.mark.long
def test_a_run_leaves_a_machine_that_will_be_taken_away(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    job = place.write_job(max_steps=100_000)
    job.write_text(job.read_text().replace("every_steps: 20", "every_steps: 50000"))
    (place.folder / "pool.yaml").write_text(POOL)
    with ray_head({}, cpus=1) as head:
        head.add_node("second", cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", head.address)
        driver = place.start("run", "job.yaml", "--pool", "pool.yaml")
        place.until(driver, lambda: place.view().status().step > 0)
        assert place.committed() == 0, "nothing is saved yet but what the notice will save"
        head.drain_node("second", deadline_s=60)
        first = place.until(driver, place.committed)
        head.add_node("third", cpus=1)
        place.until(driver, lambda: place.view().status().step > first)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(120) == 1, place.text()
    view = place.view()
    assert len(view.attempts()) == 2, "the machine that went away was no longer needed"
    assert "will be taken away in " in place.text()
    steps = [int(row["step"]) for row in view.all_metrics() if LOSS in row]
    assert steps == list(range(1, steps[-1] + 1)), "no step is taken twice or left out"


def trains(view: RunView, *, ranks: int) -> bool:
    """Whether the newest attempt has so many ranks and has committed a checkpoint of its own."""
    if not view.attempts():
        return False
    newest = view.attempts()[-1]
    facts = view.facts(newest)
    own = [entry for entry in view.log.read() if entry.kind == "commit" and entry.attempt == newest]
    return facts is not None and facts["plan"]["world_size"] == ranks and bool(own)
