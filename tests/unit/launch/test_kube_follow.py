from __future__ import annotations

from tests.unit.kube.test_why import pod, ray_job, unscheduled
from warpbeam.kube.fate import fate_of
from warpbeam.kube.why import Seen
from warpbeam.launch.kube_follow import with_what_was_there


def test_a_missed_deadline_keeps_its_reason_although_the_pods_have_gone() -> None:
    unplaced = pod(on=None, **unscheduled("0/2 nodes are available: 2 Insufficient nvidia.com/gpu."))
    before = Seen(ray_job("Initializing"), pods=[unplaced])
    ended = Seen(ray_job("Failed", reason="PreRunningDeadlineExceeded", message="late"))
    fate = fate_of(with_what_was_there(ended, before))
    assert fate is not None
    assert "2 Insufficient nvidia.com/gpu" in fate.sentence
    assert with_what_was_there(ended, None) is ended
