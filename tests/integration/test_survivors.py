"""A rank is killed in a run whose state every rank holds: another one saves it alone, and not a step is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launch_runs import Workplace, put_data
from warpbeam.record.states import RunState
from warpbeam.record.view import LOSS
from warpbeam.storage import StorageConfig

STEPS = 400
SEEN = ("grad_norm", "lr", "loss_tokens", "batch_crc")


@pytest.fixture
def place(s3: StorageConfig, tmp_path: Path) -> Iterator[Workplace]:
    put_data(s3)
    workplace = Workplace(tmp_path, s3, "left-over")
    yield workplace
    workplace.close()


def write(place: Workplace, name: str) -> None:
    """A job that saves at its end alone, slowly enough to be struck in its middle."""
    place.name = name
    path = place.write_job(max_steps=STEPS)
    path.write_text(path.read_text().replace("every_steps: 20", f"every_steps: {STEPS}"))


def rows(place: Workplace) -> dict[int, list[float]]:
    return {
        row["step"]: [row[LOSS], *(row[name] for name in SEEN)] for row in place.view().all_metrics() if LOSS in row
    }


def checkpoints(place: Workplace, attempt: str) -> list[tuple[int, int | None]]:
    """Steps, and who saved them alone."""
    return [(e["step"], e.get("alone")) for e in place.view().events(attempt) if e["kind"] == "checkpoint"]


def test_every_killed_rank_costs_no_step(place: Workplace) -> None:
    """Once the first rank, which alone writes the rows, once the other; bitwise what an undisturbed run gives. And
    under torchrun, which sends the survivor SIGTERM at once.
    """
    write(place, "left-over")
    driver = place.start("run", "job.yaml")
    for number, victim in ((1, 0), (2, 1)):
        place.until(driver, lambda number=number: len(place.view().attempts()) == number)
        place.until(driver, lambda: len(place.view().metrics(place.view().attempts()[-1])) > 5)
        os.kill(place.pid_of(victim), signal.SIGKILL)
        place.until(driver, lambda number=number: len(place.view().attempts()) > number)
    place.until(driver, lambda: place.view().state()[0] in (RunState.DONE, RunState.RUNNING))
    assert driver.wait(300) == 0, place.text()
    attempts = place.view().attempts()
    assert len(attempts) == 3
    saved = [checkpoints(place, attempt) for attempt in attempts]
    assert [[by for _, by in each] for each in saved] == [[1], [0], [None]], place.text()
    begun = [e["start_step"] for a in attempts for e in place.view().events(a) if e["kind"] == "model_ready"]
    assert sorted(set(begun)) == [0, *(each[0][0] for each in saved[:2])]

    cut = rows(place)
    write(place, "calm")
    code, text = place.run("run", "job.yaml")
    assert code == 0, text
    assert cut == rows(place)

    write(place, "bare")
    torchrun = place.start(
        "--nproc-per-node", "2", "-m", "warpbeam.train", "job.yaml", by="torch.distributed.run", log="bare.txt"
    )
    place.until(torchrun, lambda: place.view().attempts() and place.view().metrics(place.view().attempts()[0]))
    os.kill(place.pid_of(1), signal.SIGKILL)
    assert torchrun.wait(120) == 1, place.text("bare.txt")
    ((step, by),) = checkpoints(place, place.view().attempts()[0])
    assert (by, step) == (0, place.committed())
