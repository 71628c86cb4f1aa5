from __future__ import annotations

from tests.unit.kube.test_why import READY, event, pod, ray_job, unscheduled
from warpbeam.kube.narrate import Narrator
from warpbeam.kube.why import Seen

IMAGE = {"image": "registry.test/train:1"}


def test_a_run_from_the_queue_to_its_first_line() -> None:
    narrator = Narrator()
    waiting = ray_job("Suspended", suspend=True)
    assert narrator.tell(Seen(waiting)) == ["it waits until all of it fits"]
    assert narrator.tell(Seen(waiting)) == [], "nothing is told twice"
    job = ray_job("Initializing", rayClusterName="tiny-abc")
    placed = pod("tiny-abc-w-1", on="gpu-1")
    placed["spec"]["containers"][0] |= IMAGE
    pulling = event("Pulling", "Pulling image", "tiny-abc-w-1")
    assert narrator.tell(Seen(job, pods=[placed], events=[pulling])) == [
        "cluster tiny-abc",
        "pod tiny-abc-w-1 is placed on node gpu-1 (1 of 1)",
        "pod tiny-abc-w-1 pulls registry.test/train:1",
    ]
    ready = pod("tiny-abc-w-1", on="gpu-1", phase="Running", **READY)
    assert narrator.tell(Seen(job, pods=[ready])) == [
        "pod tiny-abc-w-1 has started (1 of 1)",
        "pod tiny-abc-w-1 is ready (1 of 1)",
    ]
    running = ray_job("Running", rayClusterName="tiny-abc")
    assert narrator.tell(Seen(running, pods=[ready])) == ["it runs"]
    again = ray_job("Initializing", rayClusterName="tiny-def")
    assert narrator.tell(Seen(again))[0] == "cluster tiny-def (the one before was tiny-abc)"


def test_many_pods_are_counted() -> None:
    pods = [pod(f"w-{number}", on="gpu-1") for number in range(100)]
    assert Narrator().tell(Seen(ray_job(), pods=pods)) == ["100 pods placed on a node (100 of 100)"]


def test_a_pod_without_a_place_is_told_in_the_schedulers_words() -> None:
    alone = pod(on=None, **unscheduled("0/5 nodes are available: 5 Insufficient nvidia.com/gpu."))
    (line,) = Narrator().tell(Seen(ray_job(), pods=[alone]))
    assert "has no place: 0/5 nodes are available: 5 Insufficient nvidia.com/gpu" in line
