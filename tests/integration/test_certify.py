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
