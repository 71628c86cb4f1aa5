"""Machines that will be taken away: Ray knows of a spot notice, a node that is drained, an autoscaler that shrinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def leaving_s(now_s: float) -> float | None:
    """Seconds until the first machine with a part of this driver's job is taken away; None when none is.

    Infinity where Ray was given no deadline. Costs one small question to the cluster.
    """
    import ray
    from ray._private.state import state

    draining = state.get_draining_nodes()
    if not draining:
        return None
    from ray.util import placement_group_table

    job_id = ray.get_runtime_context().get_job_id()
    own = (group for name, group in placement_group_table().items() if name.endswith(job_id))
    return first_deadline_s(draining, own, now_s)


def first_deadline_s(draining: Mapping[str, int], groups: Iterable[Mapping[str, Any]], now_s: float) -> float | None:
    """The earliest deadline among nodes on which a live group has a bundle. Pure.

    Args:
        draining: node id -> deadline in unix milliseconds, 0 without one.
        groups: rows of Ray's placement group table.
        now_s: unix time.
    """
    ours = {
        node
        for group in groups
        if group["state"] != "REMOVED"
        for node in (group.get("bundles_to_node_id") or {}).values()
    }
    left = [
        deadline / 1000 - now_s if deadline else float("inf") for node, deadline in draining.items() if node in ours
    ]
    return min(left, default=None)
