"""The certificate of a real job: killed, resized, and still the run it would have been."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launch_runs import Workplace, put_data
from warpbeam.storage import StorageConfig


@pytest.fixture
def place(s3: StorageConfig, tmp_path: Path) -> Iterator[Workplace]:
    put_data(s3)
    workplace = Workplace(tmp_path, s3, "certified")
    yield workplace
    workplace.close()


@pytest.mark.long
def test_killed_and_resized_is_the_run_it_would_have_been(place: Workplace) -> None:
    job = place.write_job()
    job.write_text(job.read_text().replace("strategy: ddp", "strategy: zero3"))
    code, text = place.run("certify", "job.yaml", "--worlds", "2,1,2", "--kills", "4", "--steps", "32", timeout_s=1500)
    assert code == 0, text
    assert "equal: " in text
    found = json.loads((place.folder / "certified-certificate/certificate.json").read_text())
    assert found["verdict"]["equal"]
    assert [kill["ranks"] for kill in found["kills"]][:2] == [2, 1]
    assert len(found["kills"]) >= 2, "one for each change of ranks; short steps may end before the others"
    assert (place.folder / "certified-certificate/loss.png").stat().st_size > 5000
    assert [path.name for path in place.folder.glob(".certified*")] == [], "the two job files are gone"


FORGETFUL = """
from torch.nn import functional

calls = 0

def loss(outputs, batch):
    global calls
    calls += 1  # a warm-up that lives in the process, so that a killed run begins it again
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten()
    total = functional.cross_entropy(logits.float(), targets, ignore_index=-100, reduction="sum")
    return total * min(1.0, calls / 1000), int((targets != -100).sum())
"""


@pytest.mark.long
def test_a_job_that_keeps_something_in_the_process_is_not_certified(place: Workplace) -> None:
    (place.folder / "mine.py").write_text(FORGETFUL)
    place.write_job(extra='code: {loss: "mine:loss"}\n')
    code, text = place.run("certify", "job.yaml", "--kills", "1", "--steps", "24", timeout_s=900)
    assert code == 1, text
    found = json.loads((place.folder / "certified-certificate/certificate.json").read_text())
    verdict, (kill,) = found["verdict"], found["kills"]
    assert not verdict["equal"]
    assert verdict["difference"]["what"] == "loss_metrics/global_avg_loss"
    assert 1 < verdict["difference"]["step"] <= kill["step"] + 1, "the first step after the checkpoint before the kill"
    assert "NOT equal" in text
    assert f"differs     step {verdict['difference']['step']}" in text
