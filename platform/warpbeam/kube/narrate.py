"""A run's way through a cluster as lines for a person, each told once: placed, image pulled, started. Pure.

Many pods are told in counts, a few by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from warpbeam.kube.why import Seen, Verdict, verdict
from warpbeam.record.states import RunState

Object = Mapping[str, Any]

NAMED: Final = 3
"""Pods that come further at once and are still told by name."""
STAGES: Final = ("placed", "pulls", "started", "ready")
_WORDS: Final = {
    "placed": "placed on a node",
    "pulls": "pulling the image",
    "started": "started",
    "ready": "ready",
}


class Narrator:
    """Remembers what it has told."""

    def __init__(self) -> None:
        self._told: dict[str, set[str]] = {stage: set() for stage in STAGES}
        self._cluster = ""
        self._sentence = ""
        self._state: RunState | None = None

    def tell(self, seen: Seen) -> list[str]:
        """What is new since the last time."""
        return [*self._cluster_lines(seen), *self._stage_lines(seen), *self._verdict_lines(verdict(seen))]

    def _cluster_lines(self, seen: Seen) -> Iterator[str]:
        name = seen.ray_job.get("status", {}).get("rayClusterName", "")
        if not name or name == self._cluster:
            return
        again = f" (the one before was {self._cluster})" if self._cluster else ""
        self._cluster = name
        yield f"cluster {name}{again}"

    def _stage_lines(self, seen: Seen) -> Iterator[str]:
        total = len(seen.pods)
        now = {stage: {pod["metadata"]["name"]: pod for pod in _at(stage, seen)} for stage in STAGES}
        for stage in STAGES:
            fresh = [pod for name, pod in now[stage].items() if name not in self._told[stage]]
            self._told[stage] |= set(now[stage])
            if not fresh:
                continue
            so_far = f" ({len(now[stage])} of {total})" if stage != "pulls" else ""
            if len(fresh) > NAMED:
                yield f"{len(fresh)} pods {_WORDS[stage]}{so_far}"
                continue
            for pod in fresh:
                yield f"pod {pod['metadata']['name']} {_detail(stage, pod)}{so_far}"

    def _verdict_lines(self, found: Verdict) -> Iterator[str]:
        if found.reason and found.sentence != self._sentence:
            yield found.sentence
        if found.state is not self._state and found.state is RunState.RUNNING:
            yield "it runs"
        if found.state is not self._state and found.state is RunState.WAITING and not found.reason:
            yield f"it waits: {found.sentence}"
        self._sentence, self._state = found.sentence, found.state


def _at(stage: str, seen: Seen) -> Iterator[Object]:
    for pod in seen.pods:
        status = pod.get("status", {})
        if (
            (stage == "placed" and pod.get("spec", {}).get("nodeName"))
            or (stage == "pulls" and _pulls(pod, seen))
            or (stage == "started" and status.get("phase") == "Running")
            or (stage == "ready" and _is_ready(pod))
        ):
            yield pod


def _detail(stage: str, pod: Object) -> str:
    if stage == "placed":
        return f"is placed on node {pod['spec']['nodeName']}"
    if stage == "pulls":
        return f"pulls {pod['spec']['containers'][0]['image']}"
    return f"has {_WORDS[stage]}" if stage == "started" else f"is {_WORDS[stage]}"


def _pulls(pod: Object, seen: Seen) -> bool:
    """By its events; an image that is there already is never pulled."""
    name = pod["metadata"]["name"]
    return any(
        event.get("reason") == "Pulling" and event["involvedObject"].get("name") == name for event in seen.events
    )


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)
