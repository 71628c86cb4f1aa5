"""A rank is killed in a run whose state every rank holds: another one saves it alone, and not a step is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launch_runs import Workplace, put_data
from warpbeam.record.view import LOSS
from warpbeam.storage import StorageConfig

STEPS = 60
DIES = {0: 20, 1: 40}
SEEN = ("grad_norm", "lr", "loss_tokens", "batch_crc")
# A kill from outside would now and then strike between an update and the end of its step, where nothing can be saved.
OWN_LOSS = f"""\
import os, signal
from pathlib import Path

import torch.distributed as dist
from torch.nn import functional


def loss(outputs, batch):
    rank = dist.get_rank()
    killed = Path(__file__).with_name(f"killed-{{rank}}")
    if batch.step == {DIES}[rank] and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    targets = batch.labels[:, 1:].flatten()
    logits = outputs.logits[:, :-1].flatten(0, 1).float()
    return functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum"), (targets != -100).sum()
"""


@pytest.fixture
def place(s3: StorageConfig, tmp_path: Path) -> Iterator[Workplace]:
    put_data(s3)
    workplace = Workplace(tmp_path, s3, "left-over")
    (tmp_path / "own_loss.py").write_text(OWN_LOSS)
    yield workplace
    workplace.close()


def write(place: Workplace, name: str) -> None:
    """A job that saves at its end alone."""
    place.name = name
    path = place.write_job(max_steps=STEPS, extra='code: {loss: "own_loss:loss"}\n')
    path.write_text(path.read_text().replace("every_steps: 20", f"every_steps: {STEPS}"))


def rows(place: Workplace) -> dict[int, list[float]]:
    return {
        row["step"]: [row[LOSS], *(row[name] for name in SEEN)] for row in place.view().all_metrics() if LOSS in row
    }


def checkpoints(place: Workplace, attempt: str) -> list[tuple[int, int | None]]:
    """Steps, and who saved them alone."""
    return [(e["step"], e.get("alone")) for e in place.view().events(attempt) if e["kind"] == "checkpoint"]


def test_a_killed_rank_costs_no_step(place: Workplace) -> None:
    """Once the first rank, which alone writes the rows, once the other; bitwise what an undisturbed run gives. And
    under torchrun, which sends the survivor SIGTERM at once.
    """
    write(place, "left-over")
    code, text = place.run("run", "job.yaml")
    assert code == 0, text
    attempts = place.view().attempts()
    assert [checkpoints(place, attempt) for attempt in attempts] == [[(19, 1)], [(39, 0)], [(STEPS, None)]], text
    begun = [e["start_step"] for a in attempts for e in place.view().events(a) if e["kind"] == "model_ready"]
    assert sorted(set(begun)) == [0, 19, 39]

    cut = rows(place)
    write(place, "calm")
    code, text = place.run("run", "job.yaml")
    assert code == 0, text
    assert cut == rows(place)

    write(place, "bare")
    (place.folder / "killed-1").unlink()
    torchrun = place.start(
        "--nproc-per-node", "2", "-m", "warpbeam.train", "job.yaml", by="torch.distributed.run", log="bare.txt"
    )
    assert torchrun.wait(300) == 1, place.text("bare.txt")
    assert checkpoints(place, place.view().attempts()[0]) == [(39, 0)], place.text("bare.txt")
