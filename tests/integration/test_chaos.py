"""A few seeded faults in a run on this machine; `make chaos-long` injects many, on a cluster of two nodes."""

from __future__ import annotations

from pathlib import Path

from tests.integration.chaos.__main__ import MOST_LOST
from tests.integration.chaos.faults import Fault, schedule
from tests.integration.chaos.proof import prove
from tests.integration.chaos.scene import Scene

FAULTS = [
    Fault(kind="rank", moment="save", side="request", after_s=0, outage_s=0, rank=1),
    Fault(kind="server", moment="commit", side="answer", after_s=0, outage_s=3, rank=0),
    Fault(kind="network", moment="restore", side="request", after_s=0, outage_s=4, rank=0),
]


def test_faults_inside_the_protocol_lose_nothing(tmp_path: Path) -> None:
    with Scene(tmp_path, own_ray=True, strategy="ddp") as scene:
        scene.begin("rough")
        outcomes = [scene.inject(fault) for fault in FAULTS]
        last = scene.stop()
        scene.repeat_undisturbed("calm", last)
        proof = prove(scene.view("rough"), scene.view("calm"), ranks=2)
    assert all(0 <= outcome.lost <= MOST_LOST for outcome in outcomes), outcomes
    assert proof.holds, proof


def test_the_schedule_is_a_function_of_its_seed_and_meets_every_pair() -> None:
    assert schedule(40, 7) == schedule(40, 7)
    assert len({(fault.kind, fault.moment) for fault in schedule(30, 1)}) == 30
