from __future__ import annotations

from typing import Any

import pytest

from warpbeam.errors import PlatformError
from warpbeam.kube.observe import Target, gather, look

TARGET = Target("team-red", "tiny", "tiny", "red")


def thing(name: str, labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}, "uid": f"uid-{name}"}, **more}


JOB = thing("tiny", status={"rayClusterName": "tiny-abc"})


def test_only_what_belongs_to_this_attempt_is_seen() -> None:
    mine = thing("tiny-abc-head", {"ray.io/cluster": "tiny-abc"})
    before = thing("tiny-old-head", {"ray.io/cluster": "tiny-old"})
    submitter = thing("tiny-x1", {"job-name": "tiny"})
    serving = thing("tiny-serve-head", {"ray.io/cluster": "tiny-serve"})
    about = thing("e1", involvedObject={"name": "tiny-abc-head"})
    other = thing("e2", involvedObject={"name": "tinytoo"})
    queued = thing("wl", status={})
    queued["metadata"]["ownerReferences"] = [{"uid": "uid-tiny"}]
    seen = gather(
        TARGET,
        {
            "RayJob": [JOB, thing("else")],
            "RayCluster": [thing("tiny-abc"), thing("tiny-old")],
            "Pod": [mine, before, submitter, serving],
            "Event": [about, other],
            "Workload": [thing("else"), queued],
        },
    )
    assert seen is not None
    assert [pod["metadata"]["name"] for pod in seen.pods] == ["tiny-abc-head", "tiny-x1"]
    assert (seen.ray_cluster or {})["metadata"]["name"] == "tiny-abc"
    assert (list(seen.events), seen.workload) == ([about], queued)
    assert gather(TARGET, {"RayJob": [thing("else")]}) is None


class Listing:
    version = "1"

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items


class Source:
    """Lists what it has; a kind that it lacks may not be read."""

    def __init__(self, **objects: list[dict[str, Any]]) -> None:
        self.objects = objects

    def list(self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "") -> Any:
        if kind not in self.objects:
            raise PlatformError(f"no {kind}", reason="kube_forbidden")
        return Listing(self.objects[kind])


def test_one_look_does_without_what_may_not_be_read() -> None:
    seen = look(Source(RayJob=[JOB], Pod=[]), TARGET)  # type: ignore[arg-type]
    assert seen is not None
    assert seen.events == []
    with pytest.raises(PlatformError):
        look(Source(Pod=[]), TARGET)  # type: ignore[arg-type]
