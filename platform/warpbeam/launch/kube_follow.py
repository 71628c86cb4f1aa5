"""Watch a run in a cluster from the first moment: why it waits, what its pods do, what its driver prints, its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from warpbeam.errors import UnknownFate, WarpbeamError
from warpbeam.kube.client_errors import Dropped
from warpbeam.kube.fate import fate_of
from warpbeam.kube.narrate import Narrator
from warpbeam.kube.observe import JOB_LABEL, Observer
from warpbeam.kube.watch import Patience, follow_log
from warpbeam.kube.why import Seen, verdict

if TYPE_CHECKING:
    from warpbeam.kube.client import Cluster
    from warpbeam.launch.kube_submit import Sent

SUBMITTER_CONTAINER: Final = "ray-job-submitter"
TICK_S: Final = 1.0
LAST_LINES_S: Final = 10.0
"""How long the end waits for the log's last lines."""


@dataclass(frozen=True)
class Listener:
    """Who hears what.

    Args:
        on_line: what happens in the cluster.
        on_log: a line that the driver printed, with its end.
        on_trouble: what was lost for a moment.
    """

    on_line: Callable[[str], None]
    on_log: Callable[[bytes], None]
    on_trouble: Callable[[str], None]


def follow_run(cluster: Cluster, sent: Sent, listener: Listener) -> Seen:
    """Until the RayJob has ended; what was seen last.

    Raises:
        UnknownFate: it was deleted, or the API server was away for ten minutes.
    """
    observer = Observer(cluster, sent.target, lambda: Patience(listener.on_trouble))
    observer.start(queued=sent.queued)
    narrator, logs = Narrator(), _DriverLogs(cluster, sent.target.namespace, listener)
    waiting: Seen | None = None
    while True:
        try:
            seen = observer.wait(TICK_S)
        except Dropped as error:
            raise _lost(sent, "the API server was away for too long", str(error)) from error
        if seen is None:
            if observer.listed:
                raise _lost(sent, f"RayJob {sent.target.name} was deleted", "somebody, or something, deleted it")
            continue
        if seen.ray_job["metadata"]["uid"] != sent.uid:
            raise _lost(sent, f"RayJob {sent.target.name} was deleted and made anew", "somebody has submitted it again")
        for line in narrator.tell(seen):
            listener.on_line(line)
        logs.look(seen)
        if (fate := fate_of(seen)) is not None:
            logs.finish()
            return seen if fate.reason != "deadline" else with_what_was_there(seen, waiting)
        if verdict(seen).reason:
            waiting = seen


def with_what_was_there(seen: Seen, before: Seen | None) -> Seen:
    """Its pods are taken away at a deadline, and with them the reason why it was missed: as it was seen last."""
    return seen if before is None else replace(seen, pods=before.pods, events=before.events)


class _DriverLogs:
    """The submitter's pod prints what the driver prints; a new attempt has a new one."""

    def __init__(self, cluster: Cluster, namespace: str, listener: Listener) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._listener = listener
        self._threads: dict[str, threading.Thread] = {}

    def look(self, seen: Seen) -> None:
        """Begin to read every submitter that has begun to speak."""
        for pod in seen.pods:
            name = pod["metadata"]["name"]
            if JOB_LABEL in pod["metadata"].get("labels", {}) and name not in self._threads and _has_spoken(pod):
                thread = threading.Thread(target=self._read, args=(name,), daemon=True)
                self._threads[name] = thread
                thread.start()

    def finish(self) -> None:
        """Wait for the last lines."""
        for thread in self._threads.values():
            thread.join(LAST_LINES_S)

    def _read(self, pod: str) -> None:
        try:
            patience = Patience(self._listener.on_trouble)
            for line in follow_log(self._cluster, pod, self._namespace, SUBMITTER_CONTAINER, patience=patience):
                self._listener.on_log(line + b"\n")
        except WarpbeamError as error:
            self._listener.on_trouble(f"the driver's output cannot be read: {error.what}")


def _has_spoken(pod: Any) -> bool:
    for status in pod.get("status", {}).get("containerStatuses", []):
        if status["name"] == SUBMITTER_CONTAINER:
            return bool({"running", "terminated"} & set(status.get("state", {})))
    return False


def _lost(sent: Sent, what: str, why: str) -> UnknownFate:
    run = sent.target.run
    return UnknownFate(
        f"{what}; how run {run!r} ended is not known",
        why=why,
        fix=f"its record knows more: `warpbeam status {run}`, `warpbeam logs {run}`",
        reason="cluster_lost",
    )
